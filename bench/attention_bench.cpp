// Attention of SmolLM2-135M's shape on the CPU device: decode rows of one or more sequences and prefill rows over a context, from
// memory (more layers than the caches hold, as in a step whose weights go through between) and from the caches (one layer again and
// again), with K and V in float16 and in int8. Beside each, in the same run, the read bandwidth of a buffer of the same size.
// `--json FILE` writes the figures.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "cpu_peaks.h"
#include "kernels/cpu/convert.h"
#include "kernels/device_factory.h"
#include "kernels/ops.h"
#include "kernels/step_input.h"
#include "runtime/clock.h"

namespace {

using namespace takt;

constexpr int32_t kLayers = 30;
constexpr int32_t kHeads = 9;
constexpr int32_t kBlockTokens = 16;
constexpr size_t kFarBytes = 96u << 20;   ///< three times the L3 cache

struct Shape {
    int32_t sequences, rows, context;   // `rows` of each sequence end at `context`
};
constexpr Shape kShapes[] = {{1, 1, 128}, {1, 1, 1024}, {1, 1, 4096}, {8, 1, 256}, {16, 1, 256}, {1, 128, 128}, {1, 512, 512}};

[[noreturn]] void die(const char* what) { std::exit((std::fprintf(stderr, "%s\n", what), 1)); }
void need(const Status& status) {
    if (!status.ok()) die(status.message);
}
template <class T>
T need(Result<T> result) {
    if (!result) die(result.error().c_str());
    return std::move(result).value();
}

/// A step's attention over its own KV layers.
class Bench {
public:
    Bench(Device& device, const Clock& clock, const Shape& shape, DType type) : device_(device), clock_(clock), shape_(shape) {
        kv_.type = type;
        kv_.num_layers = kLayers;
        kv_.num_kv_heads = 3;
        kv_.head_dim = 64;
        kv_.block_tokens = kBlockTokens;
        blocks_ = (shape.context + kBlockTokens - 1) / kBlockTokens;
        kv_.num_blocks = 1 + shape.sequences * blocks_;
        stream_ = need(device.stream(0));
        std::mt19937 random(5);
        const std::vector<uint8_t> noise = make_noise(random);
        const int32_t layers = std::max(kLayers, static_cast<int32_t>(kFarBytes / kv_.layer_bytes()) + 1);
        for (int32_t i = 0; i < layers; ++i) {
            layers_.push_back(need(device.alloc(kv_.layer_bytes(), MemoryKind::device)));
            auto* to = layers_.back().as<uint8_t>();
            for (size_t at = 0; at < kv_.layer_bytes(); at += noise.size()) {
                std::memcpy(to + at, noise.data(), std::min(noise.size(), kv_.layer_bytes() - at));
            }
        }
        make_input();
        const auto width = static_cast<size_t>(kHeads * kv_.head_dim);
        const size_t bytes = static_cast<size_t>(shape.sequences * shape.rows) * width * sizeof(float);
        q_ = need(device.alloc(bytes, MemoryKind::device));
        out_ = need(device.alloc(bytes, MemoryKind::device));
        for (size_t i = 0; i < bytes / sizeof(float); ++i) q_.as<float>()[i] = std::normal_distribution<float>()(random);
    }

    /// Milliseconds of the attention of kLayers layers.
    double measure(bool far) {
        std::vector<std::unique_ptr<Graph>> graphs;
        const size_t num_graphs = far ? layers_.size() / kLayers : 1;
        for (size_t g = 0; g < num_graphs; ++g) {
            need(stream_->begin_capture());
            for (size_t i = 0; i < kLayers; ++i) need(device_.ops().attention(*stream_, params(far ? g * kLayers + i : 0)));
            graphs.push_back(need(stream_->end_capture()));
        }
        std::vector<double> times;
        double total = 0;
        for (size_t i = 0; (total < 4e8 || i < 6) && i < 2000; ++i) {
            const uint64_t begin = clock_.now_ns();
            need(stream_->launch(*graphs[i % num_graphs]));
            need(stream_->synchronize());
            times.push_back(static_cast<double>(clock_.now_ns() - begin));
            total += times.back();
        }
        std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
        return times[times.size() / 2] / 1e6;
    }
    [[nodiscard]] double read_bytes() const {
        return static_cast<double>(kLayers) * shape_.sequences * blocks_ * static_cast<double>(kv_.block_stride());
    }
    /// Of all layers.
    [[nodiscard]] double token_bytes() const { return static_cast<double>(kv_.block_bytes()) / kBlockTokens; }

private:
    /// Whole heads' shares of a block, of values about 1.
    [[nodiscard]] std::vector<uint8_t> make_noise(std::mt19937& random) const {
        const size_t per_block = kv_.scales_begin() / dtype_bytes(kv_.type, 1);
        std::vector<uint8_t> noise((size_t{1} << 21) / kv_.head_stride() * kv_.head_stride());
        for (size_t at = 0; at < noise.size(); at += kv_.head_stride()) {
            for (size_t i = 0; i < per_block; ++i) {
                const float v = std::normal_distribution<float>()(random);
                const uint16_t half = cpu::f32_to_f16(v);
                const auto byte = static_cast<int8_t>(std::clamp(v * 40.0F, -127.0F, 127.0F));
                if (kv_.type == DType::f16) std::memcpy(&noise[at + 2 * i], &half, 2);
                if (kv_.type == DType::i8) std::memcpy(&noise[at + i], &byte, 1);
            }
            const float scale = 0.025F;
            for (size_t i = kv_.scales_begin(); i < kv_.head_stride(); i += sizeof scale) std::memcpy(&noise[at + i], &scale, sizeof scale);
        }
        return noise;
    }
    void make_input() {
        StepCapacity c;
        c.max_rows = shape_.sequences * shape_.rows;
        c.max_segments = c.max_samples = shape_.sequences;
        c.max_work = device_.ops().max_attention_work(device_, kv_, kHeads, c.max_rows, c.max_segments, shape_.context);
        c.max_block_ids = shape_.sequences * (blocks_ + 8);
        c.max_biases = c.max_updates = 1;
        const StepInputLayout layout(c);
        input_ = need(device_.alloc(layout.bytes(), MemoryKind::device));
        std::memset(input_.data(), 0, layout.bytes());
        view_ = layout.view(input_.data());
        view_.header->num_rows = c.max_rows;
        view_.header->num_segments = shape_.sequences;
        for (int32_t s = 0; s < shape_.sequences; ++s) {
            const int32_t table = s * (blocks_ + 8);
            view_.segments[s] = {s * shape_.rows, shape_.rows, shape_.context - shape_.rows, table, blocks_, s, {0, 0}};
            for (int32_t b = 0; b < blocks_; ++b) view_.block_ids[table + b] = 1 + s * blocks_ + b;
        }
        AttentionPlanParams plan;
        plan.host = view_;
        plan.capacity = c;
        plan.num_heads = kHeads;
        plan.kv = kv_;
        need(device_.ops().plan_attention(device_, plan));
        partials_ = need(device_.alloc(
            device_.ops().attention_scratch_bytes(device_, kv_, kHeads, c.max_work, c.max_rows), MemoryKind::device));
    }
    AttentionParams params(size_t layer) {
        AttentionParams p;
        p.in = view_;
        p.rows = view_.header->num_rows;
        p.q = q_.data();
        p.num_heads = kHeads;
        p.kv = kv_;
        p.kv_layer = layers_[layer].data();
        p.scale = 0.125f;
        p.partials = partials_.data();
        p.out = out_.data();
        return p;
    }

    Device& device_;
    const Clock& clock_;
    Shape shape_;
    KvLayout kv_;
    int32_t blocks_ = 0;
    std::unique_ptr<Stream> stream_;
    std::vector<Buffer> layers_;
    Buffer input_, q_, out_, partials_;
    StepView view_;
};

boost::json::object run_threads(const Clock& clock, int threads, CpuIsa isa, const std::vector<Shape>& shapes) {
    CpuDeviceOptions o;
    o.num_threads = threads;
    o.isa = isa;
    const std::unique_ptr<Device> device = need(make_cpu_device(o, clock.source()));
    const double read = takt::bench::measure_peaks(clock, threads, kFarBytes).read_gb_s;
    std::printf("%d thread%s, read %.1f GB/s\n%-32s %10s %10s %10s %14s\n", threads, threads > 1 ? "s" : "", read,
                "sequences x rows at context", "memory ms", "floor ms", "caches ms", "bytes a token");
    boost::json::object result{{"read_gb_s", read}};
    for (const Shape& shape : shapes) {
        for (const DType type : {DType::f16, DType::i8}) {
            Bench bench(*device, clock, shape, type);
            const double far = bench.measure(true);
            const double near = bench.measure(false);
            const double floor = bench.read_bytes() / read / 1e6;
            std::string name = std::to_string(shape.sequences) + " x " + std::to_string(shape.rows) + " at ";
            name += std::to_string(shape.context) + (type == DType::i8 ? ", int8" : "");
            std::printf("%-32s %10.3f %10.3f %10.3f %14.0f\n", name.c_str(), far, floor, near, bench.token_bytes());
            std::fflush(stdout);
            result[name] = {{"memory_ms", far}, {"floor_ms", floor}, {"caches_ms", near}, {"kv_bytes_per_token", bench.token_bytes()}};
        }
    }
    return result;
}

}  // namespace

int main(int argc, char** argv) {
    std::string json;
    std::vector<int> threads = {1, 2};
    std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
    CpuIsa isa = CpuIsa::automatic;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string key = argv[i], value = argv[i + 1];
        if (key == "--json") json = value;
        if (key == "--decode") shapes = {{1, 1, std::atoi(value.c_str())}};   // one sequence at this context alone
        if (key == "--threads") threads = {std::atoi(value.c_str())};
        if (key == "--isa") isa = value == "avx2" ? CpuIsa::avx2 : value == "portable" ? CpuIsa::portable : CpuIsa::avx512;
    }
    const RealClock clock;
    boost::json::object result;
    for (const int n : threads) result["threads_" + std::to_string(n)] = run_threads(clock, n, isa, shapes);
    if (!json.empty()) {
        std::FILE* file = std::fopen(json.c_str(), "w");
        if (file == nullptr) return 1;
        std::fprintf(file, "%s\n", boost::json::serialize(result).c_str());
        std::fclose(file);
    }
    return 0;
}
