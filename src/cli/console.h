// What the program writes beside its answers: log lines and the loading bar, both on standard error. Any thread.
#pragma once

#include <takt/config.h>

namespace takt::cli {

/// Sets config.log and config.on_progress: log lines in the configured level and format (never below `at_least`), a bar
/// while loading if standard error is a terminal. The two never write into each other's line.
void attach_console(Config& config, LogLevel at_least);

}  // namespace takt::cli
