// The command line, by CLI11. One function a command adds its options; run_program maps errors to exit codes.
#include "cli/program.h"

#include <takt/error.h>
#include <takt/version.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>

#include "cli/bench/options.h"

namespace takt::cli {

namespace {

// CLI11 2.1 reads -1, and what is too large, as 2^64 - 1.
std::string check_seed(const std::string& text) {
    std::uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    return error == std::errc() && end == text.data() + text.size() ? "" : "found " + text + ", allowed 0 to 2^64 - 1";
}
const CLI::Validator kSeed(check_seed, "0 to 2^64 - 1");

// What the parsed command will run.
struct Choice {
    std::function<int()> command;
};

void add_config(CLI::App& app, ConfigOptions& options, bool model) {
    app.add_option("--config", options.file, "configuration file (else ./config.toml, else the defaults)");
    app.add_option("--set", options.overrides, "section.key=value over the configuration; may be repeated")
        ->expected(1)
        ->take_all();
    if (model) app.add_option("--model", options.model, "a .gguf file or a Hugging Face folder");
}

void add_serve(CLI::App& program, ServeOptions& options, const Environment& environment, Choice& choice) {
    CLI::App& app = *program.add_subcommand("serve", "run the server");
    add_config(app, options.config, true);
    app.add_flag("--insecure", options.insecure, "serve others than this machine without keys");
    app.callback([&] { choice.command = [&] { return serve(options, environment); }; });
}

void add_generate(CLI::App& program, GenerateOptions& options, Choice& choice) {
    CLI::App& app = *program.add_subcommand("generate", "stream one answer to standard output");
    add_config(app, options.config, true);
    app.add_option("--max-tokens", options.max_tokens, "tokens at most (the rest of the context)")->check(CLI::Range(1, 2147483647));
    app.add_option("--temperature", options.temperature, "0: always the likeliest token (1)")->check(CLI::Range(0.0, 100.0));
    app.add_option("--top-p", options.top_p, "over 0 to 1 (1)")->check(CLI::Range(1e-9, 1.0));
    app.add_option("--seed", options.seed, "the same seed gives the same answer")->check(kSeed);
    app.add_flag("--chat", options.chat, "the prompt is a user's message, not raw text");
    app.add_flag("--timings", options.timings, "print timings to standard error");
    app.add_option("PROMPT", options.prompt, "the text, or - for standard input")->required();
    app.callback([&] { choice.command = [&] { return generate(options); }; });
}

void add_chat(CLI::App& program, ChatOptions& options, const Environment& environment, Choice& choice) {
    CLI::App& app = *program.add_subcommand("chat", "a conversation in the terminal");
    add_config(app, options.config, true);
    app.add_option("--max-tokens", options.max_tokens, "tokens an answer at most (the rest of the context)")
        ->check(CLI::Range(1, 2147483647));
    app.add_option("--temperature", options.temperature, "0: always the likeliest token (0.7)")->check(CLI::Range(0.0, 100.0));
    app.add_option("--seed", options.seed, "the same seed gives the same answers")->check(kSeed);
    app.add_option("--system", options.system, "the system message");
    app.callback([&] {
        options.history_file = environment("HOME").value_or("");
        if (!options.history_file.empty()) options.history_file += "/.takt_history";
        choice.command = [&] { return chat(options); };
    });
}

void add_inspect(CLI::App& program, InspectOptions& options, Choice& choice) {
    CLI::App& app = *program.add_subcommand("inspect", "what a model file holds");
    add_config(app, options.config, false);
    app.add_flag("--plan", options.plan, "the memory plan, and whether it fits");
    app.add_flag("--tensors", options.tensors, "list the tensors");
    app.add_option("MODEL", options.config.model, "a .gguf file or a Hugging Face folder")->required();
    app.callback([&] { choice.command = [&] { return inspect_model(options); }; });
}

void add_simulate(CLI::App& program, SimulateCommand& command, Choice& choice) {
    CLI::App& app = *program.add_subcommand("simulate", "the server's scheduler over a recorded trace");
    add_config(app, command.config, false);
    SimulateOptions& options = command.options;
    app.add_option("--trace", command.trace, "Azure CSV, Mooncake JSON lines or plain CSV")->required();
    app.add_option("--profile", command.profile, "step times of a device");
    app.add_option("--policies", options.policies, "ms, ms-fcfs, chunk:N, budget:N, unchunked, p-pas: all with the same arrivals")
        ->delimiter(',');
    app.add_option("--rate", options.rate, "arrivals a second are multiplied by it")->check(CLI::Range(1e-6, 1e6));
    app.add_option("--seconds", options.seconds, "of the trace; 0: all")->check(CLI::Range(0.0, 1e9));
    app.add_option("--requests", options.requests, "as many, the trace repeated; 0: its own")->check(CLI::Range(0, 100000000));
    app.add_option("--seed", options.seed, "seed of the noise")->check(kSeed);
    app.add_option("--swap-mib", options.swap_mib, "host memory for the KV of preempted requests")->check(CLI::Range(0, 1'000'000'000));
    app.add_flag_callback("--no-spread", [&options] { options.spread = false; }, "leave batched stamps as they are");
    app.add_flag("--check", options.check, "hold every plan against the invariants");
    app.add_option("--explain", options.num_explained, "so many of the worst gaps, with their causes")->check(CLI::Range(0, 10000));
    app.add_option("--json", command.json, "write the figures to this file");
    app.add_option("--plot", command.plot, "write an SVG of gaps over time and of the frontier to this file");
    app.callback([&] { choice.command = [&] { return simulate(command); }; });
}

void add_quantize(CLI::App& program, QuantizeOptions& options, Choice& choice) {
    CLI::App& app = *program.add_subcommand("quantize", "write a quantised copy of a model");
    app.add_option("IN", options.input, "model to read")->required();
    app.add_option("OUT", options.output, "model to write")->required();
    app.add_option("--format", options.format, "GGUF: q8_0, q4_0, q4_1, q4_k, q6_k; folders: w8, w4g128, w3g128")->required();
    app.callback([&] { choice.command = [&] { return quantize(options); }; });
}

void add_bench(CLI::App& program, BenchOptions& options, Choice& choice) {
    CLI::App& app = *program.add_subcommand("bench", "load a server and measure it");
    app.add_option("--url", options.urls,
                   "ws://HOST:PORT/v1/stream or http://HOST:PORT/v1; several are measured in turn (ws://127.0.0.1:8480/v1/stream)")
        ->expected(1)
        ->take_all();
    app.add_option("--api", options.api, "http: completions (token ids; the default) or chat (words)")
        ->check(CLI::IsMember({"completions", "chat"}));
    app.add_option("--concurrency", options.concurrency, "closed loop: this many at once; a list is a sweep (8)")->delimiter(',');
    app.add_option("--requests", options.num_requests, "requests a point (64)")->check(CLI::Range(1, 1000000));
    app.add_option("--rate", options.rate, "open loop: arrivals a second")->check(CLI::Range(1e-6, 1e6));
    app.add_option("--arrivals", options.arrivals, "poisson or fixed (poisson)")->check(CLI::IsMember({"poisson", "fixed"}));
    app.add_option("--trace", options.trace, "open loop: arrivals of a recorded trace");
    app.add_option("--time-scale", options.time_scale, "of the trace: 2 sends twice as fast (1)")->check(CLI::Range(1e-3, 1e6));
    app.add_option("--seconds", options.seconds, "open loop: arrivals of this long at most")->check(CLI::Range(0.001, 1e7));
    app.add_option("--scenario", options.scenario, "insert: a long prompt beside short streams")->check(CLI::IsMember({"insert"}));
    app.add_option("--streams", options.num_streams, "short streams of the insertion (8)")->check(CLI::Range(1, 100000));
    app.add_option("--insert-tokens", options.insert_tokens, "length of the inserted prompt (2000)")->check(CLI::Range(1, 10000000));
    app.add_option("--prompt-tokens", options.prompt_tokens, "length of a prompt (128)")->check(CLI::Range(1, 10000000));
    app.add_option("--max-tokens", options.max_tokens, "tokens an answer (128; insertion 4096, by WebSocket the whole context)")
        ->check(CLI::Range(1, 10000000));
    app.add_option("--repeat", options.repeat, "rounds; servers take turns (1)")->check(CLI::Range(1, 1000));
    app.add_option("--itl-ms", options.itl_ms, "a gap longer than this is late (40); asked of the server if given")
        ->check(CLI::Range(1e-3, 1e9));
    app.add_option("--itl-factor", options.itl_factor, "insertion: this many times the streams' own plain gap instead")
        ->check(CLI::Range(0.01, 1e6));
    app.add_option("--ttft-ms", options.ttft_ms, "a first token later than this misses (2000); asked of the server if given")
        ->check(CLI::Range(1e-3, 1e9));
    app.add_flag("--may-stop", options.may_stop, "answers may end before --max-tokens");
    app.add_option("--seed", options.seed, "of arrivals and prompts (1)")->check(kSeed);
    app.add_option("--key", options.key, "bearer key");
    app.add_option("--model", options.model, "model name for http (the first that the server names)");
    app.add_option("--json", options.json, "write the figures to this file");
    app.add_option("--plot", options.plot, "write the gaps over time to this SVG file");
    app.add_option("--profile", options.profile, "no load: measure the step times of the device and model of --config into this file");
    add_config(app, options.config, false);
    app.callback([&] { choice.command = [&] { return bench(options); }; });
}

// CLI11 itself says no more than that a subcommand is missing.
bool refuse_unknown_command(const CLI::App& program, int argc, const char* const* argv) {
    if (argc < 2 || argv[1][0] == '-') return false;
    std::string allowed;
    for (const CLI::App* command : program.get_subcommands({})) {
        if (command->get_name() == argv[1]) return false;
        allowed += (allowed.empty() ? "" : ", ") + command->get_name();
    }
    std::fprintf(stderr, "takt: unknown command \"%s\"; allowed: %s\n", argv[1], allowed.c_str());
    return true;
}

int guarded(const std::function<int()>& command) {
    try {
        return command();
    } catch (const config_error& problem) {
        std::fprintf(stderr, "takt: %s\n", problem.what());
        return kUsage;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "takt: %s\n", problem.what());
        return kFailed;
    }
}

}  // namespace

int run_program(int argc, const char* const* argv, const Environment& environment) {
    // A pipe or socket whose reader left is an error of that write, not the end of the program.
    std::signal(SIGPIPE, SIG_IGN);
    CLI::App program("takt: an LLM inference engine that keeps every stream on the beat", "takt");
    program.set_version_flag("--version", std::string("takt ") + version());
    program.require_subcommand(1);
    Choice choice;
    ServeOptions serve_options;
    GenerateOptions generate_options;
    ChatOptions chat_options;
    InspectOptions inspect_options;
    SimulateCommand simulate_command;
    QuantizeOptions quantize_options;
    BenchOptions bench_options;
    add_serve(program, serve_options, environment, choice);
    add_generate(program, generate_options, choice);
    add_chat(program, chat_options, environment, choice);
    add_inspect(program, inspect_options, choice);
    add_simulate(program, simulate_command, choice);
    add_bench(program, bench_options, choice);
    add_quantize(program, quantize_options, choice);
    if (refuse_unknown_command(program, argc, argv)) return kUsage;
    try {
        program.parse(argc, argv);
    } catch (const CLI::ParseError& problem) {
        const int code = program.exit(problem);
        return code == 0 ? kDone : kUsage;
    }
    return guarded(choice.command);
}

}  // namespace takt::cli
