// Entry of the program `takt`: the only place that reads the environment.
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "cli/command.h"
#include "cli/program.h"

namespace {

// A signal before the command listens for it: nothing runs that could be drained. `takt serve` that was asked to stop has done so.
void stop_early(int) { std::_Exit(takt::cli::kInterrupted); }
void stop_server_early(int) { std::_Exit(takt::cli::kDone); }

}  // namespace

int main(int argc, char** argv) {
    const bool serves = argc > 1 && std::string_view(argv[1]) == "serve";
    std::signal(SIGTERM, serves ? stop_server_early : stop_early);
    std::signal(SIGINT, serves ? stop_server_early : stop_early);
    const takt::cli::Environment environment = [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        if (value == nullptr) return std::nullopt;
        return std::string(value);
    };
    return takt::cli::run_program(argc, argv, environment);
}
