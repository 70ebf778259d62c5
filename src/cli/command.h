// What the commands of the program share: options of a configuration, where to read the environment, exit codes.
#pragma once

#include <takt/config.h>
#include <takt/simulate.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace takt::cli {

/// Reads an environment variable; only main touches the real environment.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

enum ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2, kInterrupted = 130 };

/// --config, --set and --model of a command.
struct ConfigOptions {
    std::string file;
    std::vector<std::string> overrides;
    std::string model;
};

/// --config, else ./config.toml, else the built-in defaults; then --set in order, then --model.
/// @throws config_error.
Config read_config(const ConfigOptions& options);

// One function a command; each returns an exit code and lets config_error and load_error out.

struct ServeOptions {
    ConfigOptions config;
    bool insecure = false;
};
int serve(const ServeOptions& options, const Environment& environment);

struct GenerateOptions {
    ConfigOptions config;
    std::string prompt;
    std::optional<int> max_tokens;
    std::optional<double> temperature;
    std::optional<double> top_p;
    std::optional<std::uint64_t> seed;
    bool chat = false;
    bool timings = false;
};
int generate(const GenerateOptions& options);

struct ChatOptions {
    ConfigOptions config;
    std::optional<int> max_tokens;
    std::optional<double> temperature;
    std::optional<std::uint64_t> seed;
    std::string system;
    std::string history_file;
};
int chat(const ChatOptions& options);

struct InspectOptions {
    ConfigOptions config;
    bool plan = false;
    bool tensors = false;
};
int inspect_model(const InspectOptions& options);

struct SimulateCommand {
    ConfigOptions config;
    std::string trace;
    std::string profile;           ///< a file
    SimulateOptions options;
    std::string json;
    std::string plot;
};
int simulate(const SimulateCommand& command);

struct QuantizeOptions {
    std::string input;
    std::string output;
    std::string format;
};
int quantize(const QuantizeOptions& options);

}  // namespace takt::cli
