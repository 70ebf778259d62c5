// A block a row; the first 4,096 values stay in registers between the sum of squares and the output. Bound by memory or, for few
// rows, by latency.
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/ops_ptx.cuh"

namespace takt::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float block_sum(float v) {
    __shared__ float part[kThreads / 32];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kThreads / 32; ++i) sum += part[i];
    return sum;
}

struct NormArguments {
    const StepHeader* header;
    const SampleInput* samples;
    const float* hidden;
    const float* weight;
    __nv_bfloat16* out;
    int64_t out_stride;
    int32_t first_row, dim;
    float epsilon;
    bool one_plus;
};

/// A thread's columns: four at a time, kStep apart. The first kKept fours stay in registers between the two passes.
constexpr int kStep = kThreads * 4, kKept = 4;

__global__ void __launch_bounds__(kThreads, 4) norm_rows_kernel(const NormArguments a) {
    dependents_may_launch();
    const int first = static_cast<int>(threadIdx.x) * 4;
    float4 kept[kKept], weights[kKept];
#pragma unroll
    for (int i = 0; i < kKept; ++i) {   // what no earlier kernel writes
        const int c = first + i * kStep;
        weights[i] = a.weight != nullptr && c < a.dim ? __ldg(reinterpret_cast<const float4*>(a.weight + c)) : make_float4(1, 1, 1, 1);
    }
    int64_t row = a.first_row + static_cast<int64_t>(blockIdx.x);
    const bool is_real = row < (a.samples != nullptr ? a.header->num_samples : a.header->num_rows);
    if (is_real && a.samples != nullptr) row = a.samples[row].row;
    wait_for_predecessors();
    if (!is_real || row < 0) return;
    const float* in = a.hidden + row * a.dim;
    __nv_bfloat16* out = a.out + static_cast<int64_t>(blockIdx.x) * a.out_stride;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
        const int c = first + i * kStep;
        kept[i] = c < a.dim ? __ldcg(reinterpret_cast<const float4*>(in + c)) : make_float4(0, 0, 0, 0);
    }
    float scale = 1.0f;
    if (a.weight != nullptr) {
        float sum = 0;
        const auto add = [&](float4 v) { sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; };
#pragma unroll
        for (int i = 0; i < kKept; ++i) add(kept[i]);
        for (int c = first + kKept * kStep; c < a.dim; c += kStep) add(__ldcg(reinterpret_cast<const float4*>(in + c)));
        scale = rsqrtf(block_sum(sum) / static_cast<float>(a.dim) + a.epsilon);
    }
    const float shift = a.weight != nullptr && a.one_plus ? 1.0f : 0.0f;
    const auto write = [&](int c, float4 v, float4 w) {
        w = make_float4(w.x + shift, w.y + shift, w.z + shift, w.w + shift);
        *reinterpret_cast<uint2*>(out + c) = make_uint2(pack_pair<__nv_bfloat16>(v.x * scale * w.x, v.y * scale * w.y),
                                                        pack_pair<__nv_bfloat16>(v.z * scale * w.z, v.w * scale * w.w));
    };
#pragma unroll
    for (int i = 0; i < kKept; ++i) {   // up to the stride, with zeros
        if (first + i * kStep < a.out_stride) write(first + i * kStep, kept[i], weights[i]);
    }
    for (int c = first + kKept * kStep; c < a.out_stride; c += kStep) {
        const bool real = c < a.dim;
        write(c, real ? __ldcg(reinterpret_cast<const float4*>(in + c)) : make_float4(0, 0, 0, 0),
              real && a.weight != nullptr ? __ldg(reinterpret_cast<const float4*>(a.weight + c)) : make_float4(1, 1, 1, 1));
    }
}

struct BranchArguments {
    const StepHeader* header;
    const __nv_bfloat16* branch;
    const float* bias;
    const float* weight;
    float* hidden;
    int64_t branch_stride;
    int32_t first_row, dim;
    float epsilon;
    bool one_plus;
};

__global__ void __launch_bounds__(kThreads) add_branch_kernel(const BranchArguments a) {
    dependents_may_launch();
    wait_for_predecessors();
    const int64_t row = a.first_row + static_cast<int64_t>(blockIdx.x);
    if (row >= a.header->num_rows) return;
    const __nv_bfloat16* in = a.branch + static_cast<int64_t>(blockIdx.x) * a.branch_stride;
    const auto value = [&](int c) {
        const __nv_bfloat16_raw raw{__ldcg(reinterpret_cast<const unsigned short*>(in + c))};
        return __bfloat162float(__nv_bfloat16(raw)) + (a.bias != nullptr ? a.bias[c] : 0.0f);
    };
    float scale = 1.0f;
    if (a.weight != nullptr) {
        float sum = 0;
        for (int c = static_cast<int>(threadIdx.x); c < a.dim; c += kThreads) {
            const float v = value(c);
            sum += v * v;
        }
        scale = rsqrtf(block_sum(sum) / static_cast<float>(a.dim) + a.epsilon);
    }
    float* hidden = a.hidden + row * a.dim;
    for (int c = static_cast<int>(threadIdx.x); c < a.dim; c += kThreads) {
        float w = a.weight != nullptr ? a.weight[c] : 1.0f;
        if (a.weight != nullptr && a.one_plus) w += 1.0f;
        hidden[c] = __ldcg(hidden + c) + value(c) * scale * w;
    }
}

}   // namespace

Status run_norm_rows(cudaStream_t stream, const NormRowsCall& c) {
    if (c.dim % 4 != 0 || c.out_stride % 4 != 0)
        return {kStatusBadArgument, "CUDA: width of a norm must be a multiple of 4"};
    NormArguments a = {c.header,     c.samples,   c.hidden, c.norm.weight,  c.out,
                       c.out_stride, c.first_row, c.dim,    c.norm.epsilon, c.norm.style == NormStyle::one_plus};
    return launch_kernel(stream, dim3(static_cast<unsigned>(c.rows)), dim3(kThreads), 0, Edge::programmatic,
                         norm_rows_kernel, a);
}

Status run_add_branch(cudaStream_t stream, const AddBranchCall& c) {
    BranchArguments a = {c.header,        c.branch,    c.bias, c.norm.weight,  c.hidden,
                         c.branch_stride, c.first_row, c.dim,  c.norm.epsilon, c.norm.style == NormStyle::one_plus};
    return launch_kernel(stream, dim3(static_cast<unsigned>(c.rows)), dim3(kThreads), 0, Edge::programmatic,
                         add_branch_kernel, a);
}

}   // namespace takt::cuda
