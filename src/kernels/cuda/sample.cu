// One block a sample, or a cluster of blocks for few greedy ones. The greedy path is one pass; the full path makes an adjusted
// copy of the logits and cuts it by histograms. Bound by the rate at which one multiprocessor reads from L2; the token goes to
// the slot buffer and to pinned memory at once.
#include <cooperative_groups.h>

#include <utility>

#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_select.cuh"
#include "kernels/philox.h"

namespace takt::cuda {
namespace {

constexpr int kClusterBlocks = 8;
constexpr int kClusterSamples = 16;   // up to here a sample has a cluster

__device__ double uniform_of(uint64_t seed, int32_t position) {
    uint32_t c[4] = {static_cast<uint32_t>(position), 0, 0, 0},
             k[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int round = 0; round < 10; ++round) {
        const uint32_t a_high = __umulhi(0xD2511F53u, c[0]), a_low = 0xD2511F53u * c[0];
        const uint32_t b_high = __umulhi(0xCD9E8D57u, c[2]), b_low = 0xCD9E8D57u * c[2];
        const uint32_t next0 = b_high ^ c[1] ^ k[0], next2 = a_high ^ c[3] ^ k[1];
        c[0] = next0;
        c[1] = b_low;
        c[2] = next2;
        c[3] = a_low;
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return static_cast<double>((uint64_t{c[0]} << 32 | c[1]) >> 11) * 0x1p-53;
}

/// The step's edits of the penalty counts, in order; one whole block.
__device__ __forceinline__ void apply_updates(const SampleParams& p) {
    const int64_t vocab = p.vocab;
    for (int i = 0; i < p.in.header->num_updates; ++i) {
        const CountUpdate u = p.in.updates[i];
        if (u.token < 0) {
            __syncthreads();
            for (int64_t t = threadIdx.x; t < vocab; t += kSampleThreads) {
                p.output_counts[u.slot * vocab + t] = 0;
                p.prompt_seen[u.slot * vocab + t] = 0;
            }
            __syncthreads();
        } else if (threadIdx.x == 0) {
            uint16_t& count = p.output_counts[u.slot * vocab + u.token];
            if (u.is_output != 0) count = static_cast<uint16_t>(min(65535, count + 1));
            if (u.is_output == 0) p.prompt_seen[u.slot * vocab + u.token] = 1;
        }
    }
}

__global__ void __launch_bounds__(kSampleThreads) update_counts_kernel(const SampleParams p) {
    dependents_may_launch();
    wait_for_predecessors();
    apply_updates(p);
}

/// The raw logits' argmax over ids [begin, end) and whether all are finite.
__device__ __forceinline__ bool raw_argmax(SelectMemory& m, const float* logits, int begin, int end) {
    constexpr int kAtOnce = 8;
    float value = -INFINITY;
    int token = end;
    bool finite = true;
    for (int t0 = begin + static_cast<int>(threadIdx.x); t0 < end; t0 += kAtOnce * kSampleThreads) {
        float v[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) v[i] = t0 + i * kSampleThreads < end ? __ldcg(logits + t0 + i * kSampleThreads) : -INFINITY;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            finite = finite && (fabsf(v[i]) <= FLT_MAX || t0 + i * kSampleThreads >= end);
            if (v[i] > value) {   // ids ascend: the first of equal values stays
                value = v[i];
                token = t0 + i * kSampleThreads;
            }
        }
    }
    const bool all_finite = __syncthreads_and(finite ? 1 : 0) != 0;
    block_argmax(m, value, token);
    return all_finite;
}

/// Adjusted values: bias, repetition, presence and frequency; divided by the temperature where there is one.
__device__ __forceinline__ void adjust(const SampleParams& p, const SampleInput& s, const float* logits,
                                       float* values) {
    for (int t = static_cast<int>(threadIdx.x); t < p.vocab; t += kSampleThreads) values[t] = __ldcg(logits + t);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < s.num_biases; i += kSampleThreads) {
        atomicAdd(&values[p.in.biases[s.bias_begin + i].token], p.in.biases[s.bias_begin + i].bias);
    }
    __syncthreads();
    for (int t = static_cast<int>(threadIdx.x); t < p.vocab; t += kSampleThreads) {
        float v = __ldcg(values + t);
        if (s.uses_counts != 0) {
            const int count = p.output_counts[static_cast<int64_t>(s.slot) * p.vocab + t];
            if (count != 0 || p.prompt_seen[static_cast<int64_t>(s.slot) * p.vocab + t] != 0) {
                v = v > 0 ? v / s.repetition_penalty : v * s.repetition_penalty;
                if (count > 0) v -= s.presence_penalty + s.frequency_penalty * static_cast<float>(count);
            }
        }
        values[t] = s.temperature != 0.0f ? v / s.temperature : v;
    }
    __syncthreads();
}

__device__ int choose(SelectMemory& m, const SampleParams& p, const SampleInput& s, const float* values) {
    float value = -INFINITY;
    int token = p.vocab;
    for (int t = static_cast<int>(threadIdx.x); t < p.vocab; t += kSampleThreads) {
        if (values[t] > value) {
            value = values[t];
            token = t;
        }
    }
    block_argmax(m, value, token);
    const float largest = m.value;
    if (s.temperature == 0.0f) return m.token;
    Cut cut{0xffffffffu, p.vocab};
    if (s.top_k > 0 && s.top_k < p.vocab)
        cut = find_cut(m, values, p.vocab, largest, cut, false, static_cast<unsigned long long>(s.top_k));
    if (s.top_p < 1.0f) {
        sum_kept(m, values, p.vocab, largest, [&](float v, int t) { return cut.keeps(v, t); });
        const double wanted = ceil(static_cast<double>(s.top_p) * static_cast<double>(m.total));
        cut = find_cut(m, values, p.vocab, largest, cut, true, max(1ull, static_cast<unsigned long long>(wanted)));
    }
    const double least = s.min_p;
    const auto keeps = [&](float v, int t) {
        return cut.keeps(v, t) && (least <= 0.0 || exp(static_cast<double>(v - largest)) >= least);
    };
    sum_kept(m, values, p.vocab, largest, keeps);
    const auto scaled = static_cast<unsigned long long>(uniform_of(s.seed, s.position) * static_cast<double>(m.total));
    const unsigned long long point = min(scaled, m.total - 1);   // the product may round up
    draw_token(m, values, p.vocab, largest, keeps, point);
    return m.token;
}

/// Log-probabilities of the raw logits: the chosen token's and the best few.
__device__ void log_probabilities(SelectMemory& m, const SampleParams& p, const SampleInput& s, const float* logits,
                                  float largest, int token, SampleResult* out) {
    double sum = 0;
    for (int t = static_cast<int>(threadIdx.x); t < p.vocab; t += kSampleThreads)
        sum += static_cast<double>(expf(__ldcg(logits + t) - largest));
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) m.mass[threadIdx.x / 32] = static_cast<unsigned long long>(__double_as_longlong(sum));
    __syncthreads();
    double total = 0;
    for (int w = 0; w < 32; ++w) total += __longlong_as_double(static_cast<long long>(m.mass[w]));
    const double log_total = static_cast<double>(largest) + log(total);
    if (threadIdx.x == 0) out->logprob = static_cast<float>(static_cast<double>(logits[token]) - log_total);
    const int count = max(0, min(s.num_logprobs, min(kMaxTopLogprobs, p.vocab)));
    if (threadIdx.x == 0) out->num_top = count;
    float last_value = INFINITY;
    int last_token = -1;
    for (int i = 0; i < count; ++i) {
        float value = -INFINITY;
        int best = p.vocab;
        for (int t = static_cast<int>(threadIdx.x); t < p.vocab; t += kSampleThreads) {
            const float v = __ldcg(logits + t);
            const bool after = v < last_value || (v == last_value && t > last_token);
            if (after && (v > value || (v == value && t < best))) {
                value = v;
                best = t;
            }
        }
        block_argmax(m, value, best);
        last_value = m.value;
        last_token = m.token;
        if (threadIdx.x == 0) {
            out->top_tokens[i] = last_token;
            out->top_logprobs[i] = static_cast<float>(static_cast<double>(last_value) - log_total);
        }
        __syncthreads();
    }
}

template <bool kGreedy>
__global__ void __launch_bounds__(kSampleThreads, 1) sample_kernel(const SampleParams p) {
    __shared__ SelectMemory m;
    dependents_may_launch();
    wait_for_predecessors();
    const int index = static_cast<int>(blockIdx.x);
    const StepHeader& header = *p.in.header;
    auto* block = static_cast<uint8_t*>(p.results) + static_cast<size_t>(header.result_index) * p.result_stride;
    if (index == 0 && threadIdx.x == 0) reinterpret_cast<StepResultHeader*>(block)->step = header.step;
    if (kGreedy && index == 0 && p.output_counts != nullptr) apply_updates(p);   // nobody reads them in this step
    if (index >= header.num_samples) return;
    const SampleInput s = p.in.samples[index];
    if (s.row < 0) return;
    SampleResult* out = reinterpret_cast<SampleResult*>(block + sizeof(StepResultHeader)) + index;
    const float* logits = p.logits + index * p.vocab_stride;
    const bool finite = raw_argmax(m, logits, 0, p.vocab);
    const float largest = m.value;
    int token = finite ? m.token : 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        out->flags = finite ? 0 : kSampleNonFinite;
        out->logprob = 0;
        out->num_top = 0;
    }
    if (!kGreedy && finite) {
        float* values = static_cast<float*>(p.workspace) + static_cast<int64_t>(index) * p.vocab;
        adjust(p, s, logits, values);
        token = choose(m, p, s, values);
        __syncthreads();
        if (s.num_logprobs >= 0) log_probabilities(m, p, s, logits, largest, token, out);
        if (threadIdx.x == 0 && s.uses_counts != 0) {
            uint16_t& count = p.output_counts[static_cast<int64_t>(s.slot) * p.vocab + token];
            count = static_cast<uint16_t>(min(65535, count + 1));
        }
    }
    if (threadIdx.x == 0) {
        p.slot_tokens[s.slot] = token;
        out->token = token;
    }
}

/// Greedy, few samples: a cluster of kClusterBlocks blocks a sample, each with its share of the logits.
__global__ void TAKT_CLUSTER(kClusterBlocks) __launch_bounds__(kSampleThreads, 1) sample_greedy_kernel(const SampleParams p) {
#if __CUDA_ARCH__ >= 900
    __shared__ SelectMemory m;
    __shared__ float values[kClusterBlocks];
    __shared__ int tokens[kClusterBlocks], finites[kClusterBlocks];
    const auto cluster = cooperative_groups::this_cluster();
    auto started = cluster.barrier_arrive();
    dependents_may_launch();
    wait_for_predecessors();
    const int index = static_cast<int>(blockIdx.x) / kClusterBlocks, rank = static_cast<int>(cluster.block_rank());
    const StepHeader& header = *p.in.header;
    auto* block = static_cast<uint8_t*>(p.results) + static_cast<size_t>(header.result_index) * p.result_stride;
    if (blockIdx.x == 0 && threadIdx.x == 0) reinterpret_cast<StepResultHeader*>(block)->step = header.step;
    if (blockIdx.x == 0 && p.output_counts != nullptr) apply_updates(p);   // nobody reads them in this step
    const bool real = index < header.num_samples && p.in.samples[index].row >= 0;
    if (real) {
        const int begin = static_cast<int>(static_cast<int64_t>(p.vocab) * rank / kClusterBlocks),
                  end = static_cast<int>(static_cast<int64_t>(p.vocab) * (rank + 1) / kClusterBlocks);
        const bool finite = raw_argmax(m, p.logits + index * p.vocab_stride, begin, end);
        cluster.barrier_wait(std::move(started));   // the block that it writes to stands
        if (threadIdx.x == 0) {
            *cluster.map_shared_rank(&values[rank], 0) = m.value;
            *cluster.map_shared_rank(&tokens[rank], 0) = m.token;
            *cluster.map_shared_rank(&finites[rank], 0) = finite ? 1 : 0;
        }
    } else {
        cluster.barrier_wait(std::move(started));
    }
    cluster.sync();
    if (!real || rank != 0 || threadIdx.x != 0) return;
    float value = values[0];
    int token = tokens[0], finite = finites[0];
    for (int i = 1; i < kClusterBlocks; ++i) {   // ranks hold ascending ids: the first of equal values stays
        finite &= finites[i];
        if (values[i] <= value) continue;
        value = values[i];
        token = tokens[i];
    }
    SampleResult* out = reinterpret_cast<SampleResult*>(block + sizeof(StepResultHeader)) + index;
    out->flags = finite != 0 ? 0 : kSampleNonFinite;
    out->logprob = 0;
    out->num_top = 0;
    out->token = finite != 0 ? token : 0;
    p.slot_tokens[p.in.samples[index].slot] = finite != 0 ? token : 0;
#endif
}

}   // namespace

size_t sample_workspace_bytes(int32_t samples, int32_t vocab) {
    return static_cast<size_t>(samples) * static_cast<size_t>(vocab) * sizeof(float);
}

Status run_sample(cudaStream_t stream, const SampleParams& p) {
    const dim3 grid(static_cast<unsigned>(p.samples));
    if (p.greedy_only && p.samples <= kClusterSamples && has_tensor_copies()) {
        return launch_kernel(stream, dim3(static_cast<unsigned>(p.samples * kClusterBlocks)), dim3(kSampleThreads), 0,
                             Edge::programmatic, sample_greedy_kernel, p);
    }
    if (p.greedy_only)
        return launch_kernel(stream, grid, dim3(kSampleThreads), 0, Edge::programmatic, sample_kernel<true>, p);
    if (p.output_counts != nullptr) {
        const Status s = launch_kernel(stream, dim3(1), dim3(kSampleThreads), 0, Edge::programmatic, update_counts_kernel, p);
        if (!s.ok()) return s;
    }
    return launch_kernel(stream, grid, dim3(kSampleThreads), 0, Edge::programmatic, sample_kernel<false>, p);
}

}   // namespace takt::cuda
