// Paged attention of one job: online softmax in tiles of 64 positions, afresh in each chunk of 256, chunks folded in order.
// The arithmetic of a query is a function of its own position and the cache alone: not of the rows beside it, nor of the split.
#pragma once

#include "kernels/cpu/kernel_math.h"

namespace takt::cpu {
namespace {

/// Running softmax of one query: accumulator, then maximum and sum of weights.
struct SoftmaxState {
    float* acc;
    float* max;
    float* sum;
    SoftmaxState(float* base, int head_dim) : acc(base), max(base + head_dim), sum(base + head_dim + 1) {}
    void clear(int head_dim) const {
        for (int d = 0; d < head_dim; d += 16) store(acc + d, zero());
        *max = -std::numeric_limits<float>::infinity();
        *sum = 0.0f;
    }
};

/// into = into merged with chunk, in this order.
void fold(const SoftmaxState& into, const SoftmaxState& chunk, int head_dim) {
    if (*into.sum == 0.0f) {
        for (int d = 0; d < head_dim; d += 16) store(into.acc + d, load(chunk.acc + d));
        *into.max = *chunk.max;
        *into.sum = *chunk.sum;
        return;
    }
    const float largest = *into.max > *chunk.max ? *into.max : *chunk.max;
    const float a = exp_one(*into.max - largest);
    const float b = exp_one(*chunk.max - largest);
    for (int d = 0; d < head_dim; d += 16) {
        store(into.acc + d, fma(load(chunk.acc + d), broadcast(b), load(into.acc + d) * broadcast(a)));
    }
    *into.sum = *into.sum * a + *chunk.sum * b;
    *into.max = largest;
}

void write_head(const SoftmaxState& s, int head_dim, float* out) {
    const Lanes inverse = broadcast(*s.sum > 0.0f ? 1.0f / *s.sum : 0.0f);
    for (int d = 0; d < head_dim; d += 16) store(out + d, load(s.acc + d) * inverse);
}

/// Positions [begin, begin + count) of K or V as float32 rows.
void load_tile(const AttentionJob& j, const uint8_t* layer, int begin, int count, float* out) {
    for (int t = 0; t < count; ++t) {
        const int position = begin + t;
        const auto block = static_cast<size_t>(j.table[position / j.block_tokens]);
        const auto token = static_cast<size_t>(position % j.block_tokens);
        const uint8_t* p = layer + block * j.block_stride + j.head_offset + token * j.token_stride;
        float* o = out + t * j.head_dim;
        for (int d = 0; d < j.head_dim; d += 16) {
            const Lanes v = j.type == DType::f16   ? load_f16(p + 2 * d)
                            : j.type == DType::f32 ? load(reinterpret_cast<const float*>(p) + d)
                                                   : load_bf16(p + 2 * d);
            store(o + d, v);
        }
    }
}

/// scores[0..64): scaled products with the tile's keys; positions outside [low, high) get -infinity.
void score_tile(const AttentionJob& j, const float* q, const float* keys, int count, int low, int high, float* scores) {
    const int dims = j.head_dim;
    for (int t = 0; t < count; ++t) {
        const float* k = keys + t * dims;
        Lanes s = load(q) * load(k);
        for (int d = 16; d < dims; d += 16) s = fma(load(q + d), load(k + d), s);
        scores[t] = reduce_add(s);
    }
    for (int t = count; t < kTilePositions; ++t) scores[t] = 0.0f;
    const Lanes hidden = broadcast(-std::numeric_limits<float>::infinity());
    for (int i = 0; i < kTilePositions; i += 16) {
        Lanes s = load(scores + i) * broadcast(j.scale);
        if (j.soft_cap > 0.0f) s = cap_lanes(s, j.soft_cap);
        const int from = low > i ? (low - i < 16 ? low - i : 16) : 0;
        const int to = high > i ? (high - i < 16 ? high - i : 16) : 0;
        store(scores + i, from < to ? select_range(s, hidden, from, to) : hidden);
    }
}

/// acc = acc * correction + scores x values, for kLanes x 16 dimensions held in registers.
template <int kLanes>
TAKT_LANES void weigh_values(float* acc, float correction, const float* scores, const float* values, int dims, int low, int high) {
    Lanes a[kLanes];
    repeat<kLanes>([&](auto i) TAKT_INLINE { a[i] = load(acc + i * 16) * broadcast(correction); });
    for (int t = low; t < high; ++t) {
        const Lanes p = broadcast(scores[t]);
        const float* v = values + t * dims;
        repeat<kLanes>([&](auto i) TAKT_INLINE { a[i] = fma(p, load(v + i * 16), a[i]); });
    }
    repeat<kLanes>([&](auto i) TAKT_INLINE { store(acc + i * 16, a[i]); });
}

/// One query over one tile: [low, high) are the positions of the tile that it sees, relative to the tile.
void attend_tile(const AttentionJob& j, const float* q, const float* keys, const float* values, int low, int high,
                 const SoftmaxState& state, float* scores) {
    score_tile(j, q, keys, high, low, high, scores);
    Lanes largest = load(scores);
    for (int i = 16; i < kTilePositions; i += 16) largest = max(largest, load(scores + i));
    const float tile_max = reduce_max(largest);
    const float new_max = *state.max > tile_max ? *state.max : tile_max;
    const float correction = *state.sum == 0.0f ? 0.0f : exp_one(*state.max - new_max);
    Lanes sum = zero();
    for (int i = 0; i < kTilePositions; i += 16) {
        const Lanes p = exp_lanes(load(scores + i) - broadcast(new_max));
        sum = sum + p;
        store(scores + i, p);
    }
    *state.sum = *state.sum * correction + reduce_add(sum);
    *state.max = new_max;
    const int dims = j.head_dim;
    for (int d = 0; d < dims; d += 64) {
        const int lanes = dims - d >= 64 ? 4 : (dims - d) / 16;
        float* acc = state.acc + d;
        switch (lanes) {
            case 1: weigh_values<1>(acc, correction, scores, values + d, dims, low, high); break;
            case 2: weigh_values<2>(acc, correction, scores, values + d, dims, low, high); break;
            case 3: weigh_values<3>(acc, correction, scores, values + d, dims, low, high); break;
            default: weigh_values<4>(acc, correction, scores, values + d, dims, low, high);
        }
    }
}

void attention(const AttentionJob& j) {
    const int dims = j.head_dim;
    const int num_queries = j.num_rows * j.num_heads;
    const size_t state_floats = static_cast<size_t>(dims) + 16;
    float* chunk_base = j.scratch;
    float* total_base = chunk_base + static_cast<size_t>(num_queries) * state_floats;
    float* scores = total_base + static_cast<size_t>(num_queries) * state_floats;
    float* keys = scores + static_cast<size_t>(num_queries) * kTilePositions;
    float* values = keys + kTilePositions * dims;
    auto chunk_state = [&](int n) { return SoftmaxState(chunk_base + static_cast<size_t>(n) * state_floats, dims); };
    auto total_state = [&](int n) { return SoftmaxState(total_base + static_cast<size_t>(n) * state_floats, dims); };
    for (int n = 0; n < num_queries; ++n) total_state(n).clear(dims);

    for (int chunk = j.kv_begin / kChunkPositions * kChunkPositions; chunk < j.kv_end; chunk += kChunkPositions) {
        for (int n = 0; n < num_queries; ++n) chunk_state(n).clear(dims);
        for (int tile = chunk; tile < chunk + kChunkPositions && tile < j.kv_end; tile += kTilePositions) {
            const int count = j.kv_end - tile < kTilePositions ? j.kv_end - tile : kTilePositions;
            if (j.window > 0 && tile + kTilePositions <= j.first_position - j.window + 1) continue;
            load_tile(j, j.layer, tile, count, keys);
            load_tile(j, j.layer_v, tile, count, values);
            for (int n = 0; n < num_queries; ++n) {
                const int row = n / j.num_heads;
                const int position = j.first_position + row;
                const int high = position + 1 - tile < count ? position + 1 - tile : count;
                const int first = j.window > 0 ? position - j.window + 1 - tile : 0;
                const int low = first > 0 ? first : 0;
                if (low >= high) continue;
                const auto head = static_cast<size_t>(n % j.num_heads);
                const float* q = j.q + static_cast<size_t>(row) * j.q_stride + head * static_cast<size_t>(dims);
                attend_tile(j, q, keys, values, low, high, chunk_state(n), scores);
            }
        }
        for (int n = 0; n < num_queries; ++n) {
            if (*chunk_state(n).sum != 0.0f) fold(total_state(n), chunk_state(n), dims);
        }
    }
    for (int n = 0; n < num_queries; ++n) {
        const SoftmaxState s = total_state(n);
        const int row = n / j.num_heads;
        const int head = n % j.num_heads;
        if (j.partial != nullptr) {
            std::memcpy(j.partial + static_cast<size_t>(n) * state_floats, s.acc, sizeof(float) * (static_cast<size_t>(dims) + 2));
        } else {
            write_head(s, dims, j.out + static_cast<size_t>(row) * j.out_stride + static_cast<size_t>(head) * static_cast<size_t>(dims));
        }
    }
}

void merge(const float* partials, size_t stride, int num_chunks, int head_dim, float* out) {
    float total[kMaxHeadDim + 16];
    const SoftmaxState into(total, head_dim);
    into.clear(head_dim);
    for (int c = 0; c < num_chunks; ++c) {
        float chunk[kMaxHeadDim + 16];
        std::memcpy(chunk, partials + static_cast<size_t>(c) * stride, sizeof(float) * (static_cast<size_t>(head_dim) + 2));
        const SoftmaxState from(chunk, head_dim);
        if (*from.sum != 0.0f) fold(into, from, head_dim);
    }
    write_head(into, head_dim, out);
}

}  // namespace
}  // namespace takt::cpu
