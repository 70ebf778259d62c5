// attention_bench OUT.csv: paged decode attention alone over batches and contexts, in a graph, layer after layer over caches of
// their own, so that no launch finds its keys and values in L2. Columns: shape, batch, context, implementation, microseconds a
// layer, TB/s of keys and values read. Exit 77 where there is no device. bench/cuda/attention_baselines.py adds torch.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench_main.h"
#include "device_array.h"
#include "kernels/cuda/attention.h"
#include "step_builder.h"

namespace takt::check {
namespace {

constexpr int kHeadDim = 128, kBlockTokens = 16, kReplays = 9;
constexpr int64_t kMostTokens = int64_t{4} << 20;            // batch x context
constexpr size_t kColdBytes = size_t{256} << 20;             // of caches that take turns, where one is smaller
constexpr size_t kPatternElements = size_t{8} << 20;

struct Shape {
    const char* name;
    int heads, kv_heads;
};

class PagedDecode {
public:
    PagedDecode(const Shape& shape, int num_sms) : shape_(shape), num_sms_(num_sms) {
        require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
        pattern_ = std::make_unique<DeviceArray<__nv_bfloat16>>(random_values<__nv_bfloat16>(random_, kPatternElements, 0.5f));
    }
    ~PagedDecode() { cudaStreamDestroy(stream_); }
    PagedDecode(const PagedDecode&) = delete;
    PagedDecode& operator=(const PagedDecode&) = delete;

    /// Median microseconds of one layer.
    double time(int batch, int context) {
        KvLayout layout{DType::bf16, 1, shape_.kv_heads, kHeadDim, kBlockTokens, 0};
        const std::vector<SegmentShape> segments(static_cast<size_t>(batch), SegmentShape{context - 1, 1});
        StepBuilder step(layout, segments, shape_.heads, 0, false, num_sms_, random_);
        const size_t bytes = layout.layer_bytes();
        const auto copies = std::clamp<size_t>(kColdBytes / bytes + 1, 2, 64);
        DeviceArray<uint8_t> caches(bytes * copies);
        for (size_t at = 0; at < bytes * copies; at += kPatternElements * 2) {
            require(cudaMemcpyAsync(caches.data() + at, pattern_->data(), std::min(kPatternElements * 2, bytes * copies - at),
                                    cudaMemcpyDeviceToDevice, stream_), "cache");
        }
        const auto width = static_cast<size_t>(shape_.heads * kHeadDim);
        DeviceArray<__nv_bfloat16> q(random_values<__nv_bfloat16>(random_, static_cast<size_t>(batch) * width, 1.0f));
        DeviceArray<__nv_bfloat16> out(q.size());
        DeviceArray<uint8_t> partials(cuda::attention_scratch_bytes(layout, step.capacity().max_work));
        AttentionParams p;
        p.in = step.device();
        p.rows = batch;
        p.q = q.data();
        p.num_heads = shape_.heads;
        p.kv = layout;
        p.scale = 0.0884f;
        p.partials = partials.data();
        p.out = out.data();
        const int layers = std::max(16, static_cast<int>(copies));
        return median_us(layers, [&] {
            for (int i = 0; i < layers; ++i) {
                p.kv_layer = caches.data() + bytes * (static_cast<size_t>(i) % copies);
                require(cuda::run_attention(stream_, p, num_sms_), "attention");
            }
        });
    }

private:
    template <class Enqueue>
    double median_us(int layers, Enqueue enqueue) {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        require(cudaStreamSynchronize(stream_), "cache");
        require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
        enqueue();
        require(cudaStreamEndCapture(stream_, &graph), "capture");
        require(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
        cudaEvent_t marks[kReplays + 1];
        for (cudaEvent_t& e : marks) require(cudaEventCreate(&e), "event");
        require(cudaGraphLaunch(executable, stream_), "launch");
        for (int i = 0; i <= kReplays; ++i) {
            require(cudaEventRecord(marks[i], stream_), "event");
            if (i < kReplays) require(cudaGraphLaunch(executable, stream_), "launch");
        }
        require(cudaStreamSynchronize(stream_), "graph");
        std::vector<float> ms(kReplays);
        for (int i = 0; i < kReplays; ++i) require(cudaEventElapsedTime(&ms[static_cast<size_t>(i)], marks[i], marks[i + 1]), "elapsed");
        for (cudaEvent_t e : marks) cudaEventDestroy(e);
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
        std::sort(ms.begin(), ms.end());
        return static_cast<double>(ms[kReplays / 2]) * 1000 / layers;
    }

    Shape shape_;
    int num_sms_;
    cudaStream_t stream_ = nullptr;
    std::mt19937_64 random_{11};
    std::unique_ptr<DeviceArray<__nv_bfloat16>> pattern_;
};

void run(std::FILE* out) {
    int num_sms = 0;
    require(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
    std::fprintf(out, "shape,batch,context,implementation,us,tb_s\n");
    for (const Shape& shape : {Shape{"7b", 28, 4}, Shape{"3b", 16, 2}}) {
        PagedDecode bench(shape, num_sms);
        for (const int context : {128, 512, 1024, 4096, 16384, 32768, 131072}) {
            for (const int batch : {1, 4, 8, 16, 32, 64, 128, 256}) {
                if (int64_t{batch} * context > kMostTokens) continue;
                const double us = bench.time(batch, context);
                const double bytes = static_cast<double>(batch) * context * 4.0 * shape.kv_heads * kHeadDim;
                std::fprintf(out, "%s,%d,%d,takt,%.2f,%.3f\n", shape.name, batch, context, us, bytes / us / 1e6);
                std::fflush(out);
            }
        }
    }
}

}   // namespace
}   // namespace takt::check

int main(int argc, char** argv) { return takt::check::bench_main(argc, argv, takt::check::run); }
