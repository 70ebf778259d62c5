// A warp a (row, head), or some heads of a row where rows are many, since sines and cosines are most of the work and the same for
// all heads; each lane holds pairs that rotate together, two columns at a time, so norm and rotation need no shared memory.
#include "kernels/cuda/rope.h"

#include <algorithm>

#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/ops_ptx.cuh"
#include "kernels/cuda/rope_turn.cuh"

namespace takt::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPairTwos = 2;   // head_dim 256 / 2 pairs / 32 lanes / 2
constexpr int kRowsAHead = 64, kMostHeads = 9;   // a warp takes one head for each so many rows

/// `sums` (float32, set back to zero) or `product` is there.
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
    int32_t first_row, num_heads, num_kv_heads, head_dim, block_tokens, heads_a_warp;
    bool q_one_plus, k_one_plus, is_half, has_rope, is_f16;
};

/// Two neighbouring columns of the product, bias added.
__device__ __forceinline__ float2 take_two(const QkvArguments& a, int64_t row, int column) {
    float2 v;
    if (a.sums != nullptr) {
        auto* at = reinterpret_cast<float2*>(a.sums + row * a.stride + column);
        v = __ldcg(at);
        __stcg(at, make_float2(0.0f, 0.0f));
    } else {
        const uint32_t raw = __ldcg(reinterpret_cast<const unsigned int*>(a.product + row * a.stride + column));
        v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw));
    }
    if (a.bias != nullptr) {
        v.x += a.bias[column];
        v.y += a.bias[column + 1];
    }
    return v;
}

/// What a lane holds of a head: kPairTwos times two neighbouring pairs (x, y) that rotate together. Of two pairs the x lie in
/// columns `first` and `first + 1`, the y `distance` columns on; interleaved pairs lie (x, y), (x, y).
struct HeadLane {
    float x[kPairTwos][2] = {}, y[kPairTwos][2] = {};
    int head_dim, lane;
    bool is_half;

    __device__ __forceinline__ HeadLane(const QkvArguments& a, int thread_lane)
        : head_dim(a.head_dim), lane(thread_lane), is_half(a.is_half) {}
    /// The first of the two pairs, or -1 where this lane has none.
    [[nodiscard]] __device__ __forceinline__ int pair(int i) const {
        const int p = 2 * (lane + 32 * i);
        return p < head_dim / 2 ? p : -1;
    }
    [[nodiscard]] __device__ __forceinline__ int first(int p) const { return is_half ? p : 2 * p; }
    [[nodiscard]] __device__ __forceinline__ int second(int p) const { return is_half ? p + head_dim / 2 : 2 * p + 2; }
    /// From two runs of two columns to x and y, or back: the same exchange.
    __device__ __forceinline__ void exchange(int i) {
        if (is_half) return;
        const float t = x[i][1];
        x[i][1] = y[i][0];
        y[i][0] = t;
    }
};

__device__ __forceinline__ void norm_head(const float* weight, bool one_plus, float epsilon, HeadLane& h) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPairTwos; ++i)
        sum += h.x[i][0] * h.x[i][0] + h.x[i][1] * h.x[i][1] + h.y[i][0] * h.y[i][0] + h.y[i][1] * h.y[i][1];
    const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(h.head_dim) + epsilon);
    const float shift = one_plus ? 1.0f : 0.0f;
#pragma unroll
    for (int i = 0; i < kPairTwos; ++i) {
        const int p = h.pair(i);
        if (p < 0) continue;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            h.x[i][j] *= scale * (weight[h.first(p) + j] + shift);
            h.y[i][j] *= scale * (weight[h.second(p) + j] + shift);
        }
    }
}

/// Sines and cosines of a lane's pairs at one position.
struct HeadTurns {
    float2 turn[kPairTwos][2];
    __device__ __forceinline__ HeadTurns(const QkvArguments& a, int32_t position, const HeadLane& h) {
#pragma unroll
        for (int i = 0; i < kPairTwos; ++i) {
            const int p = h.pair(i);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                turn[i][j] = p < 0 || !a.has_rope ? make_float2(0.0f, 1.0f)
                                                  : sine_and_cosine(static_cast<float>(position), a.inverse_frequencies[p + j]);
            }
        }
    }
};

/// Head `head` (q heads, then k, then v) of the product's row `local`, which is row `row` of the step; `t` is the row's.
__device__ __forceinline__ void finish_row(const QkvArguments& a, const RowInput& in, int64_t local, int64_t row, int head, int lane,
                                           const HeadTurns& t) {
    const bool is_q = head < a.num_heads, is_v = head >= a.num_heads + a.num_kv_heads;
    HeadLane h(a, lane);
#pragma unroll
    for (int i = 0; i < kPairTwos; ++i) {
        const int p = h.pair(i);
        if (p < 0) continue;
        const float2 x = take_two(a, local, head * a.head_dim + h.first(p)), y = take_two(a, local, head * a.head_dim + h.second(p));
        h.x[i][0] = x.x;
        h.x[i][1] = x.y;
        h.y[i][0] = y.x;
        h.y[i][1] = y.y;
    }
    const float* weight = is_q ? a.q_norm : a.k_norm;
    if (!is_v && weight != nullptr) norm_head(weight, is_q ? a.q_one_plus : a.k_one_plus, is_q ? a.q_epsilon : a.k_epsilon, h);
    uint8_t* cache = a.kv_layer + in.kv_slot / a.block_tokens * a.block_stride + (is_v ? a.kv_stride : 0) +
                     (head - a.num_heads - (is_v ? a.num_kv_heads : 0)) * a.head_stride +
                     static_cast<int64_t>(in.kv_slot % a.block_tokens) * a.head_dim * 2;
    auto* to = is_q ? reinterpret_cast<uint16_t*>(a.q + (row * a.num_heads + head) * a.head_dim) : reinterpret_cast<uint16_t*>(cache);
    const bool is_f16 = !is_q && a.is_f16;
    if (!is_v && a.has_rope) {
#pragma unroll
        for (int i = 0; i < kPairTwos; ++i) {
            h.exchange(i);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float2 turn = t.turn[i][j];
                const float x = h.x[i][j], y = h.y[i][j];
                h.x[i][j] = (x * turn.y - y * turn.x) * a.magnitude;
                h.y[i][j] = (y * turn.y + x * turn.x) * a.magnitude;
            }
            h.exchange(i);
        }
    }
#pragma unroll
    for (int i = 0; i < kPairTwos; ++i) {
        const int p = h.pair(i);
        if (p < 0) continue;
        const uint32_t x = is_f16 ? pack_pair<__half>(h.x[i][0], h.x[i][1]) : pack_pair<__nv_bfloat16>(h.x[i][0], h.x[i][1]);
        const uint32_t y = is_f16 ? pack_pair<__half>(h.y[i][0], h.y[i][1]) : pack_pair<__nv_bfloat16>(h.y[i][0], h.y[i][1]);
        *reinterpret_cast<uint32_t*>(to + h.first(p)) = x;
        *reinterpret_cast<uint32_t*>(to + h.second(p)) = y;
    }
}

/// kIsMany: `heads_a_warp` heads a warp; else one.
template <bool kIsMany>
__global__ void __launch_bounds__(kWarps * 32) finish_qkv_kernel(const QkvArguments a) {
    dependents_may_launch();
    const int heads = a.num_heads + 2 * a.num_kv_heads, lane = static_cast<int>(threadIdx.x) % 32;
    const int first = (static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32) * (kIsMany ? a.heads_a_warp : 1);
    const int64_t local = blockIdx.x, row = a.first_row + local;
    if (first >= heads || row >= a.header->num_rows) return wait_for_predecessors();
    // The step's input and the angles come before the wait: after it the product's values alone are waited for.
    const RowInput in = a.rows[row];
    const HeadTurns turns(a, in.position, HeadLane(a, lane));
    wait_for_predecessors();
    const int end = kIsMany ? min(heads, first + a.heads_a_warp) : first + 1;
    for (int i = first; i < end; ++i) finish_row(a, in, local, row, i, lane, turns);
}

Status finish_arguments(const FinishQkvCall& c, QkvArguments* arguments) {
    const AttentionInputParams& p = *c.params;
    if (p.kv.head_dim > 256 || p.kv.head_dim % 4 != 0)
        return {kStatusUnsupported, "CUDA: head dimensions are multiples of 4, up to 256"};
    if (p.kv.type != DType::bf16 && p.kv.type != DType::f16)
        return {kStatusUnsupported, "CUDA: KV types are f16 and bf16 in this version"};
    QkvArguments& a = *arguments;
    a = {};
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
    a.is_f16 = p.kv.type == DType::f16;
    return {};
}

}   // namespace

Status run_finish_qkv(cudaStream_t stream, const FinishQkvCall& c) {
    QkvArguments a;
    const Status s = finish_arguments(c, &a);
    if (!s.ok()) return s;
    a.heads_a_warp = std::clamp(c.rows / kRowsAHead, 1, kMostHeads);
    const int heads = a.num_heads + 2 * a.num_kv_heads, block_heads = kWarps * a.heads_a_warp;
    const dim3 grid(static_cast<unsigned>(c.rows), static_cast<unsigned>((heads + block_heads - 1) / block_heads));
    return launch_kernel(stream, grid, dim3(kWarps * 32), 0, Edge::programmatic,
                         a.heads_a_warp > 1 ? finish_qkv_kernel<true> : finish_qkv_kernel<false>, a);
}

}   // namespace takt::cuda
