// The program's clocks: the only place in src/cli that asks for the time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace takt::cli {

std::chrono::steady_clock::time_point steady_now();
std::uint64_t now_ns();
/// Now in UTC, ISO 8601 with milliseconds.
std::string timestamp();

}  // namespace takt::cli
