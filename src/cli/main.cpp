// Entry of the program `takt`: the only place that reads the environment.
#include <cstdlib>

#include "cli/program.h"

int main(int argc, char** argv) {
    const takt::cli::Environment environment = [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        if (value == nullptr) return std::nullopt;
        return std::string(value);
    };
    return takt::cli::run_program(argc, argv, environment);
}
