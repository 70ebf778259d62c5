// takt: an LLM inference engine that keeps every stream on the beat. This header is the whole library.
#pragma once

#include <takt/config.h>
#include <takt/engine.h>
#include <takt/error.h>
#include <takt/metrics.h>
#include <takt/percentiles.h>
#include <takt/quantize.h>
#include <takt/reply.h>
#include <takt/request.h>
#include <takt/short_turns.h>
#include <takt/simulate.h>
#include <takt/trace.h>
#include <takt/version.h>
