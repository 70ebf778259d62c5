// Throughput of the engine on a real model, beside the memory floor: decode by batch and depth, prefill by length, and both
// with a busy process on each core. scripts in bench/ pair it with another engine in the same run.
#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "engine_driver.h"
#include "model/gguf.h"
#include "model/mapped_file.h"

namespace {

using namespace takt;

struct Options {
    std::string model = std::string(TAKT_SOURCE_ROOT) + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    std::string device = "cpu";
    std::string activations = "auto";
    std::string isa = "auto";
    std::string output;
    std::vector<std::string> cases;
    int threads = 2;
    int repeat = 3;
    int busy = 0;
};

// One measured case: `sequences` prompts of `prompt` tokens that decode `output` tokens each.
struct Case {
    std::string name;
    int sequences, prompt, output;
};

const std::vector<std::string> kAllCases = {"decode",   "decode-1024", "prefill-128", "prefill-512", "prefill-2048",
                                            "batch-1",  "batch-2",     "batch-4",     "batch-8",     "batch-16"};

/// "decode" (depth 0), "decode-DEPTH", "prefill-TOKENS", "batch-SEQUENCES" (prompts of 128 tokens).
Case find_case(const std::string& name) {
    const size_t dash = name.find('-');
    const std::string kind = name.substr(0, dash);
    const int number = dash == std::string::npos ? 1 : std::atoi(name.c_str() + dash + 1);
    if (number < 1 || number > 8192) throw std::runtime_error("unknown case: " + name);
    if (kind == "decode") return {name, 1, number, 65};
    if (kind == "prefill") return {name, 1, number, 1};
    if (kind == "batch" && number <= 16) return {name, number, 128, 65};
    throw std::runtime_error("unknown case: " + name);
}

Config make_config(const Options& options) {
    Config config;
    config.model.path = options.model;
    config.device.kind = options.device;
    config.device.threads = options.threads;
    config.device.activations = options.activations;
    config.device.isa = options.isa;
    config.kv.prefix_cache = false;
    config.scheduler.max_running = 16;
    config.sla.itl_ms = 1000;   // throughput: no promise that would cut prefill small
    config.model.max_context = 4096;
    validate(config);
    return config;
}

// Tokens a second: of the prompt until its first token for prefill cases; else of all sequences while all of them decode.
double measure(bench::EngineDriver& driver, const Case& shape, uint64_t seed) {
    std::vector<Request> requests;
    const int64_t vocab = driver.engine().model().vocab;
    for (int i = 0; i < shape.sequences; ++i) {
        requests.push_back(bench::random_request(seed * 64 + static_cast<uint64_t>(i), shape.prompt, shape.output, vocab));
    }
    const std::vector<bench::Stream> streams = driver.run(requests);
    if (shape.output == 1) return shape.prompt * 1e3 / streams[0].result.timings.ttft_ms;
    int64_t from = 0, to = INT64_MAX;
    for (const bench::Stream& stream : streams) {
        from = std::max(from, stream.ready_ns.front());
        to = std::min(to, stream.ready_ns.back());
    }
    int64_t tokens = 0;
    for (const bench::Stream& stream : streams) {
        for (const int64_t ready : stream.ready_ns) tokens += ready > from && ready <= to ? 1 : 0;
    }
    return static_cast<double>(tokens) * 1e9 / static_cast<double>(to - from);
}

// What a step of one row reads: the tensors of the file (devices may keep more beside them, which such a step does not read).
double read_bytes(const Options& options, const Engine& engine) {
    const Result<MappedFile> file = MappedFile::open(options.model);
    if (!file.ok()) return static_cast<double>(engine.model().weight_bytes);
    const Result<GgufFile> gguf = GgufFile::parse(file.value().bytes(), options.model);
    if (!gguf.ok()) return static_cast<double>(engine.model().weight_bytes);
    double total = 0;
    for (const GgufTensor& t : gguf.value().tensors()) {
        total += static_cast<double>(dtype_bytes(t.tensor.type, static_cast<size_t>(t.tensor.rows * t.tensor.cols)));
    }
    return total;
}

boost::json::object run(const Options& options, int argc, char** argv) {
    boost::json::object result = bench::result_head(argc, argv);
    const double bandwidth = bench::read_bandwidth(options.threads, size_t{98} << 20, 10);
    const auto begin = std::chrono::steady_clock::now();
    bench::EngineDriver driver(make_config(options));
    const double ready_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const double weight_bytes = read_bytes(options, driver.engine());
    result["threads"] = options.threads;
    result["busy_processes"] = options.busy;
    result["isa"] = options.isa;
    result["activations"] = options.activations;
    result["ready_seconds"] = ready_seconds;
    result["weight_bytes"] = weight_bytes;
    result["read_bandwidth_98mib"] = bandwidth;
    result["decode_floor_tokens_per_second"] = bandwidth / weight_bytes;
    const bench::BusyCores busy(options.busy);
    boost::json::array cases;
    for (const std::string& name : options.cases) {
        const Case shape = find_case(name);
        measure(driver, shape, 1);   // warm: pages, graphs, cost model
        std::vector<double> rates;
        for (int round = 0; round < options.repeat; ++round) rates.push_back(measure(driver, shape, 2 + static_cast<uint64_t>(round)));
        boost::json::object entry;
        entry["case"] = name;
        entry["tokens_per_second"] = bench::median(rates);
        entry["samples"] = boost::json::array(rates.begin(), rates.end());
        cases.push_back(std::move(entry));
    }
    result["cases"] = std::move(cases);
    return result;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("throughput of the engine on a real model");
    app.add_option("--model", options.model, "model file or folder");
    app.add_option("--device", options.device, "cpu, cuda or sim");
    app.add_option("--activations", options.activations, "auto, int16, int8, bf16 or float32");
    app.add_option("--isa", options.isa, "auto, avx512, avx2 or portable");
    app.add_option("--threads", options.threads, "device threads");
    app.add_option("--repeat", options.repeat, "measured rounds a case; the median is reported");
    app.add_option("--busy", options.busy, "processes that compute beside it");
    app.add_option("--output", options.output, "result file; standard output if not given");
    app.add_option("--case", options.cases, "decode, decode-DEPTH, prefill-TOKENS, batch-SEQUENCES; ten of them if not given");
    CLI11_PARSE(app, argc, argv);
    if (options.cases.empty()) options.cases = kAllCases;
    return bench::write_result(options.output, [&] { return run(options, argc, argv); });
}
