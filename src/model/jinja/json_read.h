// JSON into template values. Every text that comes out is marked as a message's. One render, one thread.
#pragma once

#include <boost/json/value.hpp>

#include "model/jinja/machine.h"

namespace takt::jinja {

/// Keys keep their order; numbers beyond 64 bits become floats. Fails through the machine if nested too deep.
Value value_of_json(Machine& machine, const boost::json::value& json);

/// Parses a text as JSON.
Value read_json_text(Machine& machine, const Text& text);

}  // namespace takt::jinja
