// Block-wide pieces of the full sampling path, 1024 threads a sample: argmax, the cut of top_k and top_p by histograms
// over the values (no sort), and the draw over the kept tokens in ascending id. Masses are 64-bit fixed point, so sums
// do not depend on order.
#pragma once

#include <cfloat>

#include "kernels/cuda/ops_ptx.cuh"

namespace takt::cuda {

constexpr int kSampleThreads = 1024;
constexpr int kBins = 2048;
constexpr double kMassScale = 17592186044416.0;   // 2^44; 2^18 tokens of the largest mass still fit

struct SelectMemory {
    unsigned long long mass[kBins];
    unsigned int count[kBins];
    unsigned long long warp_mass[32];
    float warp_value[32];
    int warp_token[32];
    int chosen_bin;
    unsigned long long above;   // count or mass of the bins before the chosen one
    unsigned long long total;
    float value;
    int token;
    int flag;
};

/// Descending order of floats as ascending unsigned keys.
__device__ __forceinline__ uint32_t descending_key(float v) {
    const uint32_t u = __float_as_uint(v);
    return (u & 0x80000000u) != 0 ? u : ~(u | 0x80000000u);
}
__device__ __forceinline__ unsigned long long mass_of(float v, float largest) {
    return static_cast<unsigned long long>(exp(static_cast<double>(v - largest)) * kMassScale);
}

/// A cut of the order (value descending, id ascending): tokens up to and with (key, token) are kept.
struct Cut {
    uint32_t key;
    int32_t token;
    __device__ __forceinline__ bool keeps(float v, int32_t t) const {
        const uint32_t k = descending_key(v);
        return k < key || (k == key && t <= token);
    }
};

/// The warp's largest value and its lowest id, in all lanes.
__device__ __forceinline__ void warp_argmax(float& value, int& token) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        const float v = __shfl_xor_sync(0xffffffffu, value, o);
        const int t = __shfl_xor_sync(0xffffffffu, token, o);
        if (v > value || (v == value && t < token)) {
            value = v;
            token = t;
        }
    }
}

/// Largest value, lowest id; the result is valid in all threads.
__device__ __forceinline__ void block_argmax(SelectMemory& m, float value, int token) {
    warp_argmax(value, token);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        m.warp_value[threadIdx.x / 32] = value;
        m.warp_token[threadIdx.x / 32] = token;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        value = m.warp_value[threadIdx.x];
        token = m.warp_token[threadIdx.x];
        warp_argmax(value, token);
        if (threadIdx.x == 0) {
            m.value = value;
            m.token = token;
        }
    }
    __syncthreads();
}

/// Finds the first bin at which the running count (or mass) reaches `target`; thread 0 walks over warp sums first.
__device__ __forceinline__ void find_bin(SelectMemory& m, bool by_mass, unsigned long long target) {
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const auto weight = [&](int bin) { return by_mass ? m.mass[bin] : static_cast<unsigned long long>(m.count[bin]); };
    unsigned long long sum = weight(warp * 64 + lane) + weight(warp * 64 + 32 + lane);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (lane == 0) m.warp_mass[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned long long above = 0;
        int part = 0;
        while (part < 31 && above + m.warp_mass[part] < target) above += m.warp_mass[part++];
        int bin = part * 64;
        while (bin < part * 64 + 63 && above + weight(bin) < target) above += weight(bin++);
        m.chosen_bin = bin;
        m.above = above;
    }
    __syncthreads();
}

/// Where among the tokens `kept` so far (by `before`) the count or the mass reaches `target`.
__device__ inline Cut find_cut(SelectMemory& m, const float* values, int vocab, float largest, const Cut& before,
                               bool by_mass, unsigned long long target) {
    // Round 0 bins by the distance to the largest value, which spreads any distribution; the others by the bits of the
    // key.
    uint32_t prefix = 0;
    int linear = 0;
    const auto linear_bin = [largest](float v) {
        return static_cast<int>(fminf((largest - v) * 64.0f, static_cast<float>(kBins - 1)));
    };
    for (int round = 0; round < 4; ++round) {
        const int shift = round == 1 ? 21 : round == 2 ? 10 : 0, bits = round == 3 ? 10 : 11;
        __syncthreads();
        for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kSampleThreads) {
            m.count[b] = 0;
            m.mass[b] = 0;
        }
        __syncthreads();
        for (int t = static_cast<int>(threadIdx.x); t < vocab; t += kSampleThreads) {
            const float v = values[t];
            if (!before.keeps(v, t)) continue;
            const uint32_t key = descending_key(v);
            int bin = linear_bin(v);
            if (round > 0) {
                if (bin != linear) continue;
                if (round > 1 && key >> (shift + bits) != prefix) continue;
                bin = static_cast<int>((key >> shift) & ((1u << bits) - 1u));
            }
            atomicAdd(&m.count[bin], 1u);
            if (by_mass) atomicAdd(&m.mass[bin], mass_of(v, largest));
        }
        find_bin(m, by_mass, target);
        target -= m.above;
        if (round == 0) linear = m.chosen_bin;
        if (round > 0) prefix = prefix << bits | static_cast<uint32_t>(m.chosen_bin);
    }
    // Among the equal values, the first ids: as many as the rest of the target needs.
    const unsigned int equal = m.count[m.chosen_bin];
    unsigned long long needed = target;
    if (by_mass) {
        const unsigned long long each = m.mass[m.chosen_bin] / max(equal, 1u);
        needed = each == 0 ? equal : (target + each - 1) / each;
    }
    if (needed >= equal) return {prefix, vocab};
    unsigned long long seen = 0;
    for (int begin = 0; begin < vocab; begin += kSampleThreads) {
        const int t = begin + static_cast<int>(threadIdx.x);
        const bool hit = t < vocab && descending_key(values[t]) == prefix && before.keeps(values[t], t);
        const int hits = __syncthreads_count(hit ? 1 : 0);
        if (seen + static_cast<unsigned>(hits) >= needed) {
            if (threadIdx.x == 0) {
                for (int i = begin; i < vocab && seen < needed; ++i) {
                    if (descending_key(values[i]) == prefix && before.keeps(values[i], i) && ++seen == needed)
                        m.token = i;
                }
            }
            __syncthreads();
            return {prefix, m.token};
        }
        seen += static_cast<unsigned>(hits);
    }
    return {prefix, vocab};
}

/// Mass of all kept tokens into m.total; each warp owns a run of ids, its sum stays in m.warp_mass.
template <class Keeps>
__device__ __forceinline__ void sum_kept(SelectMemory& m, const float* values, int vocab, float largest, Keeps keeps) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
              run = (vocab + 31) / 32;
    unsigned long long sum = 0;
    for (int t = warp * run + lane; t < min(vocab, (warp + 1) * run); t += 32) {
        if (keeps(values[t], t)) sum += mass_of(values[t], largest);
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    __syncthreads();
    if (lane == 0) m.warp_mass[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        m.total = 0;
        for (int w = 0; w < 32; ++w) m.total += m.warp_mass[w];
    }
    __syncthreads();
}

/// The first kept token, in ascending id, at which the running mass passes `point`; into m.token.
template <class Keeps>
__device__ __forceinline__ void draw_token(SelectMemory& m, const float* values, int vocab, float largest, Keeps keeps,
                                           unsigned long long point) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
              run = (vocab + 31) / 32;
    unsigned long long before = 0;
    int owner = 0;
    while (owner < 31 && before + m.warp_mass[owner] <= point) before += m.warp_mass[owner++];
    __syncthreads();
    int last = -1;
    const int end = warp == owner ? min(vocab, (owner + 1) * run) : 0;   // the other warps find nothing to do
    for (int begin = owner * run; begin < end; begin += 32) {
        const int t = begin + lane;
        const bool kept = t < end && keeps(values[t], t);
        unsigned long long sum = kept ? mass_of(values[t], largest) : 0;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const unsigned long long left = __shfl_up_sync(0xffffffffu, sum, o);
            if (lane >= o) sum += left;
        }
        const unsigned int past = __ballot_sync(0xffffffffu, kept && before + sum > point);
        const unsigned int any = __ballot_sync(0xffffffffu, kept);
        if (any != 0) last = begin + 31 - __clz(static_cast<int>(any));
        if (past != 0) {
            last = begin + __ffs(static_cast<int>(past)) - 1;
            break;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (warp == owner && lane == 0) m.token = last;
    __syncthreads();
}

}   // namespace takt::cuda
