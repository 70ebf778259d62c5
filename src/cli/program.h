// The command line of `takt`: parses it and runs one command.
#pragma once

#include "cli/command.h"

namespace takt::cli {

/// Runs the program and returns its exit code; every error has been written to standard error.
int run_program(int argc, const char* const* argv, const Environment& environment);

}  // namespace takt::cli
