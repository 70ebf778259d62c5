// A warp a (row, head): each lane holds the pairs that rotate together, so norm and rotation need no shared memory.
#include "kernels/cuda/rope.h"
#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/ops_ptx.cuh"

namespace takt::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxPairs = 4;   // head_dim 256 / 2 / 32 lanes

struct QkvArguments {
    const StepHeader* header;
    const RowInput* rows;
    float* sums;
    const __nv_bfloat16* product;
    const float *bias, *q_norm, *k_norm, *inverse_frequencies;
    __nv_bfloat16* q;
    uint8_t* kv_layer;
    int64_t stride, block_stride, kv_stride, head_stride;   // elements of the product; bytes of the cache
    float q_epsilon, k_epsilon, magnitude;
    int32_t first_row, num_heads, num_kv_heads, head_dim, block_tokens;
    bool q_one_plus, k_one_plus, is_half, has_rope;
};

__device__ __forceinline__ void pair_columns(const QkvArguments& a, int pair, int* first, int* second) {
    *first = a.is_half ? pair : 2 * pair;
    *second = a.is_half ? pair + a.head_dim / 2 : 2 * pair + 1;
}

__device__ __forceinline__ float take(const QkvArguments& a, int64_t row, int column) {
    float v;
    if (a.sums != nullptr) {
        float* at = a.sums + row * a.stride + column;
        v = __ldcg(at);
        __stcg(at, 0.0f);
    } else {
        const __nv_bfloat16_raw raw{
            __ldcg(reinterpret_cast<const unsigned short*>(a.product + row * a.stride + column))};
        v = __bfloat162float(__nv_bfloat16(raw));
    }
    return a.bias != nullptr ? v + a.bias[column] : v;
}

__device__ __forceinline__ void norm_pairs(const QkvArguments& a, const float* weight, bool one_plus, float epsilon,
                                           int lane, float (&x)[kMaxPairs], float (&y)[kMaxPairs]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) sum += x[i] * x[i] + y[i] * y[i];
    const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(a.head_dim) + epsilon);
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
        const int pair = lane + 32 * i;
        if (pair >= a.head_dim / 2) continue;
        int first, second;
        pair_columns(a, pair, &first, &second);
        x[i] *= scale * (weight[first] + (one_plus ? 1.0f : 0.0f));
        y[i] *= scale * (weight[second] + (one_plus ? 1.0f : 0.0f));
    }
}

template <class T>
__global__ void __launch_bounds__(kWarps * 32) finish_qkv_kernel(const QkvArguments a) {
    dependents_may_launch();
    wait_for_predecessors();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
    const int64_t local = blockIdx.x, row = a.first_row + local;
    if (head >= a.num_heads + 2 * a.num_kv_heads || row >= a.header->num_rows) return;
    const bool is_q = head < a.num_heads, is_v = head >= a.num_heads + a.num_kv_heads;
    const RowInput in = a.rows[row];
    float x[kMaxPairs] = {}, y[kMaxPairs] = {};
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
        const int pair = lane + 32 * i;
        if (pair >= a.head_dim / 2) continue;
        int first, second;
        pair_columns(a, pair, &first, &second);
        x[i] = take(a, local, head * a.head_dim + first);
        y[i] = take(a, local, head * a.head_dim + second);
    }
    const float* weight = is_q ? a.q_norm : a.k_norm;
    if (!is_v && weight != nullptr) {
        norm_pairs(a, weight, is_q ? a.q_one_plus : a.k_one_plus, is_q ? a.q_epsilon : a.k_epsilon, lane, x, y);
    }
    uint8_t* cache = a.kv_layer + in.kv_slot / a.block_tokens * a.block_stride + (is_v ? a.kv_stride : 0) +
                     (head - a.num_heads - (is_v ? a.num_kv_heads : 0)) * a.head_stride +
                     static_cast<int64_t>(in.kv_slot % a.block_tokens) * a.head_dim * static_cast<int64_t>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
        const int pair = lane + 32 * i;
        if (pair >= a.head_dim / 2) continue;
        int first, second;
        pair_columns(a, pair, &first, &second);
        float u = x[i], v = y[i];
        if (!is_v && a.has_rope) {
            float sine, cosine;
            sincosf(static_cast<float>(in.position) * a.inverse_frequencies[pair], &sine, &cosine);
            u = (x[i] * cosine - y[i] * sine) * a.magnitude;
            v = (y[i] * cosine + x[i] * sine) * a.magnitude;
        }
        if (is_q) {
            __nv_bfloat16* q = a.q + (row * a.num_heads + head) * a.head_dim;
            q[first] = __float2bfloat16_rn(u);
            q[second] = __float2bfloat16_rn(v);
        } else {
            reinterpret_cast<T*>(cache)[first] = from_float<T>(u);
            reinterpret_cast<T*>(cache)[second] = from_float<T>(v);
        }
    }
}

}   // namespace

Status run_finish_qkv(cudaStream_t stream, const FinishQkvCall& c) {
    const AttentionInputParams& p = *c.params;
    if (p.kv.head_dim > 256 || p.kv.head_dim % 2 != 0) return {kStatusUnsupported, "CUDA: head dimension over 256"};
    QkvArguments a = {};
    a.header = p.in.header;
    a.rows = p.in.rows;
    a.sums = c.sums;
    a.product = c.product;
    a.bias = p.bias;
    a.q_norm = p.q_norm.weight;
    a.k_norm = p.k_norm.weight;
    a.inverse_frequencies = p.rope.inverse_frequencies;
    a.q = static_cast<__nv_bfloat16*>(p.q);
    a.kv_layer = static_cast<uint8_t*>(p.kv_layer);
    a.stride = c.stride;
    a.block_stride = static_cast<int64_t>(p.kv.block_stride());
    a.kv_stride = static_cast<int64_t>(p.kv.kv_stride());
    a.head_stride = static_cast<int64_t>(p.kv.head_stride());
    a.q_epsilon = p.q_norm.epsilon;
    a.k_epsilon = p.k_norm.epsilon;
    a.magnitude = p.rope.magnitude;
    a.first_row = c.first_row;
    a.num_heads = p.num_heads;
    a.num_kv_heads = p.kv.num_kv_heads;
    a.head_dim = p.kv.head_dim;
    a.block_tokens = p.kv.block_tokens;
    a.q_one_plus = p.q_norm.style == NormStyle::one_plus;
    a.k_one_plus = p.k_norm.style == NormStyle::one_plus;
    a.is_half = p.rope.style != RopeStyle::interleaved;
    a.has_rope = p.rope.style != RopeStyle::none;
    const int heads = p.num_heads + 2 * p.kv.num_kv_heads;
    const dim3 grid(static_cast<unsigned>(c.rows), static_cast<unsigned>((heads + kWarps - 1) / kWarps));
    if (p.kv.type == DType::bf16)
        return launch_kernel(stream, grid, dim3(kWarps * 32), 0, Edge::programmatic, finish_qkv_kernel<__nv_bfloat16>,
                             a);
    if (p.kv.type == DType::f16)
        return launch_kernel(stream, grid, dim3(kWarps * 32), 0, Edge::programmatic, finish_qkv_kernel<__half>, a);
    return {kStatusUnsupported, "CUDA: KV types are f16 and bf16 in this version"};
}

}   // namespace takt::cuda
