// A whole forward of a Qwen2.5 shape with random weights over the CUDA operations, captured as graphs and timed. Host
// code.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device_array.h"
#include "kernels/cuda/ops.h"
#include "step_builder.h"

namespace takt::check {

struct ModelShape {
    std::string name;
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
};

class ModelBench {
public:
    ModelBench(const ModelShape& shape, int64_t max_kv_tokens, int max_rows, std::mt19937_64& random);
    ~ModelBench();
    ModelBench(const ModelBench&) = delete;
    ModelBench& operator=(const ModelBench&) = delete;

    struct Timing {
        double step_ms = 0;
        int num_kernels = 0;
    };
    enum class Part { all, input, attention, output, mlp, down, head };
    /// Median time of one graph replay of the step, or of one of its operations over all layers.
    Timing time(const std::vector<SegmentShape>& segments, Part part, int repeats);
    [[nodiscard]] double weight_bytes() const { return weight_bytes_; }
    [[nodiscard]] double kv_bytes_a_token() const { return 4.0 * shape_.kv_heads * shape_.head_dim * shape_.layers; }

private:
    struct Layer {
        std::unique_ptr<cuda::CudaLinear> qkv, output, gate_up, down;
        void* cache = nullptr;
    };
    std::unique_ptr<cuda::CudaLinear> make_linear(int64_t out, int64_t in, LinearKind kind);
    void enqueue(const StepBuilder& step, Part part);

    ModelShape shape_;
    std::mt19937_64& random_;
    std::shared_ptr<cuda::LinearContext> context_;
    cudaStream_t stream_ = nullptr;
    KvLayout layout_;
    std::vector<Layer> layers_;
    std::unique_ptr<cuda::CudaLinear> head_;
    std::unique_ptr<Embedding> embedding_;
    std::unique_ptr<DeviceArray<__nv_bfloat16>> pattern_, q_, attended_, wide_;
    std::unique_ptr<DeviceArray<float>> hidden_, norm_, bias_, frequencies_, logits_;
    std::unique_ptr<DeviceArray<int32_t>> slots_;
    std::unique_ptr<DeviceArray<uint8_t>> partials_;
    uint8_t* results_ = nullptr;
    double weight_bytes_ = 0;
};

}   // namespace takt::check
