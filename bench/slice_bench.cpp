// What a slice of a long prompt costs beside decoding streams: time of a step by the slice's rows and its depth in the document, and what
// that does to the whole prompt, while each stream grows by a token a step. It tells apart what a promise costs by itself (a slice's share
// of fixed work, the streams' own K and V) and what a scheduler loses.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json/array.hpp>
#include <memory>
#include <vector>

#include "engine_driver.h"
#include "runtime/engine_setup.h"
#include "runtime/forward_runner.h"
#include "runtime/step_timer.h"

namespace {

using namespace takt;

struct Options {
    std::string model = std::string(TAKT_SOURCE_ROOT) + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    std::string output, kv_type;
    int threads = 2;
    int repeat = 5;
    int streams = 1;
    int stream_context = 300, grown_context = 3300;
    std::vector<int> rows = {1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 256, 511};
    std::vector<int> depths = {0, 1000, 2000, 3000, 4000, 5000, 6000};
    int prompt = 6000;
    std::vector<double> multiples = {4, 6, 8}, promises;
    std::vector<double> uses = {0.7, 0.8, 0.9, 1.0};
    bool first_steps = false;
};

Config make_config(const Options& options) {
    Config config;
    config.model.path = options.model;
    config.model.max_context = 8192;
    config.device.kind = "cpu";
    config.device.threads = options.threads;
    config.scheduler.max_running = 16;
    if (!options.kv_type.empty()) config.kv.dtype = options.kv_type;
    validate(config);
    return config;
}

double step_ms(StepTimer& timer, int decodes, int context, int rows, int depth) {
    StepFeatures features;
    const Result<uint64_t> ns = timer.run(decodes, context, rows, depth, features);
    if (!ns) throw std::runtime_error(ns.error());
    return static_cast<double>(ns.value()) / 1e6;
}

// The first steps of a process in the order in which a server might meet them.
boost::json::array first_steps(StepTimer& timer) {
    boost::json::array out;
    const auto add = [&](int decodes, int context, int rows, int depth) {
        for (int i = 0; i < 3; ++i) {
            out.push_back(boost::json::object{{"decode_rows", decodes}, {"decode_context", context}, {"slice_rows", rows}, {"depth", depth},
                                              {"ms", step_ms(timer, decodes, context, rows, depth)}});
        }
    };
    add(1, 0, 0, 0);
    add(1, 300, 0, 0);
    for (const int rows : {8, 64, 512}) add(0, 0, rows, 0);
    add(0, 0, 64, 2000);
    add(0, 0, 64, 4000);
    add(0, 0, 64, 7000);
    return out;
}

struct Cell {
    int rows = 0, depth = 0;
    std::vector<double> ms;
};

/// Times of steps by rows and depth, straight between what was measured.
class StepTable {
public:
    StepTable(const Options& options, const std::vector<Cell>& cells) : rows_(options.rows), depths_(options.depths) {
        for (const Cell& cell : cells) ms_.push_back(bench::median(cell.ms));   // by depth, then rows
    }
    [[nodiscard]] double ms(int rows, int depth) const {
        const auto [d, deep] = place(depths_, depth);
        const std::pair<size_t, double> across = place(rows_, rows);
        const auto between = [&](size_t at_depth) {
            return (1 - across.second) * at(at_depth, across.first) + across.second * at(at_depth, across.first + 1);
        };
        return (1 - deep) * between(d) + deep * between(d + 1);
    }
    struct Prompt {
        double ms = 0;
        int tokens = 0;   ///< that went; fewer than all: a step with one row took longer than it may, and later ones would take longer yet
    };
    /// A prompt in steps of at most so many milliseconds, each as full as it can be; each step adds `growth_ms` to those behind it.
    [[nodiscard]] Prompt prompt(int tokens, double step_ms, double growth_ms) const {
        Prompt out;
        double grown_ms = 0;
        while (out.tokens < tokens && ms(1, out.tokens) + grown_ms <= step_ms) {
            int rows = 1;
            while (rows < std::min(rows_.back(), tokens - out.tokens) && ms(rows + 1, out.tokens) + grown_ms <= step_ms) ++rows;
            out.ms += ms(rows, out.tokens) + grown_ms;
            out.tokens += rows;
            grown_ms += growth_ms;
        }
        return out;
    }

private:
    [[nodiscard]] double at(size_t d, size_t r) const { return ms_[d * rows_.size() + r]; }
    static std::pair<size_t, double> place(const std::vector<int>& points, int value) {
        size_t i = 0;
        while (i + 2 < points.size() && points[i + 1] < value) ++i;
        return {i, static_cast<double>(value - points[i]) / (points[i + 1] - points[i])};
    }
    std::vector<int> rows_, depths_;
    std::vector<double> ms_;
};

/// What the steps' times alone make of the prompt: no margin, no prediction, no wire.
boost::json::array bounds(const Options& options, const StepTable& table, double plain_ms, double growth_ms) {
    boost::json::array out;
    const double unsplit_ms = table.prompt(options.prompt, 1e12, growth_ms).ms;
    std::vector<double> promises = options.promises;
    if (promises.empty()) {
        for (const double multiple : options.multiples) promises.push_back(multiple * plain_ms);
    }
    for (const double promise_ms : promises) {
        for (const double use : options.uses) {
            const StepTable::Prompt split = table.prompt(options.prompt, promise_ms * use, growth_ms);
            boost::json::object bound{{"promise_ms", promise_ms}, {"promise_used", use}, {"unsplit_ms", unsplit_ms}};
            const bool ends = split.tokens == options.prompt;
            bound["ends"] = ends;
            if (ends) {
                bound["ttft_over_unsplit"] = split.ms / unsplit_ms;
            } else {
                bound["stops_at"] = split.tokens;
            }
            out.push_back(std::move(bound));
        }
    }
    return out;
}

boost::json::object run(const Options& options, int argc, char** argv) {
    const RealClock clock;
    const Logger log({});
    const Config config = make_config(options);
    const std::unique_ptr<LoadedModel> loaded = load_everything(config, clock, log);
    const std::unique_ptr<ForwardRunner> runner =
        ForwardRunner::create(*loaded->device, *loaded->model, loaded->core_options.runner).value();
    StepTimer timer(*runner, *loaded->tokenizer);
    boost::json::object result = bench::result_head(argc, argv);
    result["threads"] = options.threads;
    if (options.first_steps) {
        result["first_steps"] = first_steps(timer);
        return result;
    }
    const auto timed = [&](int context, int rows, int depth) { return step_ms(timer, options.streams, context, rows, depth); };
    for (const int rows : options.rows) timed(options.stream_context, rows, 0);   // their memory
    for (int depth = 0; depth < options.depths.back(); depth += 500) timed(options.stream_context, 500, depth);   // K and V
    for (int i = 0; i < 5; ++i) timed(options.grown_context, 0, 0);
    boost::json::array table;
    // Cells are met in turn, so that a slow spell of shared cores strikes all alike.
    std::vector<Cell> cells;
    std::vector<double> plain, grown;
    for (const int depth : options.depths) {
        for (const int rows : options.rows) cells.push_back({rows, depth, {}});
    }
    for (int repeat = 0; repeat < options.repeat; ++repeat) {
        for (int i = 0; i < 5; ++i) plain.push_back(timed(options.stream_context, 0, 0));
        for (int i = 0; i < 5; ++i) grown.push_back(timed(options.grown_context, 0, 0));
        for (Cell& cell : cells) cell.ms.push_back(timed(options.stream_context, cell.rows, cell.depth));
    }
    for (const Cell& cell : cells) {
        const double ms = bench::median(cell.ms);
        table.push_back(boost::json::object{{"depth", cell.depth}, {"rows", cell.rows}, {"ms", ms}, {"ms_a_row", ms / cell.rows}});
    }
    const double plain_ms = bench::median(plain), grown_ms = bench::median(grown);
    const double growth_ms = std::max(0.0, (grown_ms - plain_ms) / (options.grown_context - options.stream_context));
    result["streams"] = options.streams;
    result["plain_step_ms"] = plain_ms;
    result["stream_context"] = options.stream_context;
    result["grown_step_ms"] = grown_ms;
    result["grown_context"] = options.grown_context;
    result["us_a_position"] = 1000 * growth_ms / options.streams;
    result["steps"] = std::move(table);
    result["prompt_tokens"] = options.prompt;
    result["bounds"] = bounds(options, StepTable(options, cells), plain_ms, growth_ms);
    return result;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("the cost of a prompt's slice beside streams, by rows and depth");
    app.add_option("--model", options.model, "model file or folder");
    app.add_option("--threads", options.threads, "device threads");
    app.add_option("--streams", options.streams, "decode rows of each step");
    app.add_option("--repeat", options.repeat, "steps a cell");
    app.add_option("--kv", options.kv_type, "type of K and V");
    app.add_option("--rows", options.rows, "rows of a slice");
    app.add_option("--depths", options.depths, "tokens before it");
    app.add_option("--prompt", options.prompt, "tokens of the prompt that the bounds are of");
    app.add_option("--promises", options.promises, "milliseconds that the bounds are of; 4, 6 and 8 plain steps if not given");
    app.add_option("--uses", options.uses, "parts of the promise that the bounds are of");
    app.add_flag("--first-steps", options.first_steps, "the first steps of a process instead");
    app.add_option("--output", options.output, "result file; standard output if not given");
    CLI11_PARSE(app, argc, argv);
    return bench::write_result(options.output, [&] { return run(options, argc, argv); });
}
