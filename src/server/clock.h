// The server's clocks: the only place in src/server that asks for the time.
#pragma once

#include <chrono>
#include <cstdint>

namespace takt::server {

std::chrono::steady_clock::time_point steady_now();
std::uint64_t steady_now_ns();
std::int64_t unix_seconds();
std::int64_t unix_milliseconds();

}  // namespace takt::server
