// A request's timings as a line on standard error.
#pragma once

#include <takt/request.h>

namespace takt::cli {

void print_timings(const RequestResult& result);

}  // namespace takt::cli
