// forward_bench OUT.jsonl [7b|3b [SCENE,... [REPLAYS]]]: decode, prefill and mixed steps of Qwen2.5 shapes (those whose name holds
// one of the given words), whole and by operation, each beside the bytes that it must read over 4.53 TB/s. REPLAYS: of whole steps, which
// are then not taken apart (0: the other way); seconds of them show the clock that the card's power allows. Exit 77 where there is no
// device.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench_main.h"
#include "model_bench.h"

namespace takt::check {
namespace {

using Part = ModelBench::Part;

struct Scene {
    std::string name;
    std::vector<SegmentShape> segments;
};

std::vector<SegmentShape> decodes(int batch, int context) {
    return std::vector<SegmentShape>(static_cast<size_t>(batch), SegmentShape{context - 1, 1});
}

std::vector<Scene> scenes() {
    std::vector<Scene> all;
    for (const auto& [batch, context] :
         {std::pair{1, 1024}, {1, 8192}, {4, 1024}, {8, 1024}, {16, 1024}, {64, 1024}, {64, 4096}, {256, 1024}}) {
        all.push_back(
            {"decode batch " + std::to_string(batch) + " context " + std::to_string(context), decodes(batch, context)});
    }
    for (const int rows : {16, 48, 96, 224, 480}) {
        Scene s{"mixed 32 decodes " + std::to_string(rows) + " rows at 4096", decodes(32, 1024)};
        s.segments.push_back({4096, rows});
        all.push_back(s);
    }
    all.push_back({"mixed base 32 decodes", decodes(32, 1024)});
    for (const int rows : {16, 96}) all.push_back({"slice " + std::to_string(rows) + " rows at 4096", {{4096, rows}}});
    all.push_back({"prefill 2048", {{0, 2048}}});
    all.push_back({"prefill 8192", {{0, 8192}}});
    all.push_back({"prefill 32768", {{0, 32768}}});
    return all;
}

/// Whether the name holds one of the words between commas; no words: all.
bool is_wanted(const std::string& name, const std::string& words) {
    for (size_t at = 0; at < words.size();) {
        const size_t end = std::min(words.find(',', at), words.size());
        if (name.find(words.substr(at, end - at)) != std::string::npos) return true;
        at = end + 1;
    }
    return words.empty();
}

void run_model(const ModelShape& shape, std::FILE* out, const std::string& only, int replays) {
    std::mt19937_64 random(7);
    ModelBench bench(shape, 270000, 32768, random);
    const std::pair<Part, const char*> parts[] = {{Part::input, "input"},   {Part::attention, "attention"},
                                                  {Part::output, "output"}, {Part::mlp, "mlp"},
                                                  {Part::down, "down"},     {Part::head, "head"}};
    for (const Scene& scene : scenes()) {
        if (!is_wanted(scene.name, only)) continue;
        double kv_tokens = 0;
        int64_t rows = 0;
        for (const SegmentShape& s : scene.segments) {
            kv_tokens += s.position_begin + s.num_rows;
            rows += s.num_rows;
        }
        const int repeats = replays > 0 ? replays : rows > 10000 ? 3 : rows > 1000 ? 5 : 40;
        const ModelBench::Timing step = bench.time(scene.segments, Part::all, repeats);
        const double floor_ms = (bench.weight_bytes() + kv_tokens * bench.kv_bytes_a_token()) / 4.53e9;
        std::fprintf(
            out, "{\"model\":\"%s\",\"scene\":\"%s\",\"ms\":%.4f,\"floor_ms\":%.4f,\"share\":%.3f,\"kernels\":%d",
            shape.name.c_str(), scene.name.c_str(), step.step_ms, floor_ms, floor_ms / step.step_ms, step.num_kernels);
        std::printf("%-3s %-36s %8.3f ms  read floor %7.3f (%.2f) kernels %d |", shape.name.c_str(), scene.name.c_str(),
                    step.step_ms, floor_ms, floor_ms / step.step_ms, step.num_kernels);
        for (const auto& [part, name] : parts) {
            if (replays > 0) break;
            const double ms = bench.time(scene.segments, part, repeats).step_ms;
            std::fprintf(out, ",\"%s_ms\":%.4f", name, ms);
            std::printf(" %s %.3f", name, ms);
        }
        std::fprintf(out, "}\n");
        std::printf("\n");
        std::fflush(out);
        std::fflush(stdout);
    }
}

}   // namespace
}   // namespace takt::check

int main(int argc, char** argv) {
    const std::string only = argc > 2 ? argv[2] : "", words = argc > 3 ? argv[3] : "";
    const int replays = argc > 4 ? std::atoi(argv[4]) : 0;
    return takt::check::bench_main(argc, argv, [&](std::FILE* out) {
        for (const takt::check::ModelShape& shape : {takt::check::ModelShape{"7b", 28, 3584, 28, 4, 128, 18944, 152064},
                                                     takt::check::ModelShape{"3b", 36, 2048, 16, 2, 128, 11008, 151936}}) {
            if (only.empty() || only == shape.name) takt::check::run_model(shape, out, words, replays);
        }
    });
}
