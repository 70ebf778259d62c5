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

/// Where the rows of a tile and of the next one lie, relative to a layer's K or V. Without a division a row: they cost as much as
/// the products.
struct TileRows {
    size_t offset[2 * kTilePositions];
    int count;   // up to the job's end
    TileRows(const AttentionJob& j, int tile) : count(j.kv_end - tile < 2 * kTilePositions ? j.kv_end - tile : 2 * kTilePositions) {
        const int32_t* block = j.table + tile / j.block_tokens;
        int token = tile % j.block_tokens;
        for (int t = 0; t < count; ++t) {
            offset[t] = static_cast<size_t>(*block) * j.block_stride + j.head_offset + static_cast<size_t>(token) * j.token_stride;
            if (++token == j.block_tokens) {
                token = 0;
                ++block;
            }
        }
    }
};

TAKT_LANES Lanes load_kv(DType type, const uint8_t* row, int d) {
    if (type == DType::f16) return load_f16(row + 2 * d);
    if (type == DType::bf16) return load_bf16(row + 2 * d);
    return load(reinterpret_cast<const float*>(row) + d);
}

/// Fetches row t of the next tile: blocks lie anywhere, so the hardware does not foresee them. A row at a time between the loads of
/// this tile, so that the misses neither block those nor come late (into L2: two times faster than into L1).
TAKT_LANES void prefetch_next(const AttentionJob& j, const TileRows& rows, const uint8_t* layer, int t) {
    if (t + kTilePositions >= rows.count) return;
    const uint8_t* row = layer + rows.offset[t + kTilePositions];
    for (size_t i = 0; i < j.token_stride; i += 64) prefetch(row + i);
}

/// V of the tile's first `count` positions as float32 rows.
void load_values(const AttentionJob& j, const TileRows& rows, int count, float* out) {
    for (int t = 0; t < count; ++t) {
        prefetch_next(j, rows, j.layer_v, t);
        const uint8_t* row = j.layer_v + rows.offset[t];
        for (int d = 0; d < j.head_dim; d += 16) store(out + t * j.head_dim + d, load_kv(j.type, row, d));
    }
}

/// 16 dimensions from `d` on of the tile's positions [t, t + 16), a dimension a vector. Positions from `count` on are zeros.
TAKT_LANES void load_key_columns(const AttentionJob& j, const TileRows& rows, int count, int t, int d, Lanes* columns) {
    Lanes block[16];
    if (t + 16 <= count) {
        repeat<16>([&](auto i) TAKT_INLINE { block[i] = load_kv(j.type, j.layer + rows.offset[t + i], d); });
    } else {
        repeat<16>([&](auto i) TAKT_INLINE {
            block[i] = t + i < count ? load_kv(j.type, j.layer + rows.offset[t + i], d) : zero();
        });
    }
    transpose(block, columns);
}

/// K of the tile's first `count` positions as float32, transposed: out[dimension][64]. The others are zeros.
void load_keys(const AttentionJob& j, const TileRows& rows, int count, float* out) {
    for (int t = 0; t < kTilePositions; t += 16) {
        for (int i = 0; i < 16; ++i) prefetch_next(j, rows, j.layer, t + i);
        for (int d = 0; d < j.head_dim; d += 16) {
            Lanes columns[16];
            load_key_columns(j, rows, count, t, d, columns);
            repeat<16>([&](auto i) TAKT_INLINE { store(out + (d + i) * kTilePositions + t, columns[i]); });
        }
    }
}

/// scores[i][0..64) = q[i] . keys, each a chain of FMAs over the dimensions: the same however many queries go together.
template <int kQueries>
void score_queries(const float* const* q, const float* keys, int dims, float* const* scores) {
    for (int first = 0; first < 4; first += kScoreVectors) {
        Lanes s[kQueries][kScoreVectors];
        repeat<kQueries>([&](auto i) TAKT_INLINE { repeat<kScoreVectors>([&](auto v) TAKT_INLINE { s[i][v] = zero(); }); });
        for (int d = 0; d < dims; ++d) {
            const float* row = keys + d * kTilePositions + first * 16;
            Lanes k[kScoreVectors];
            repeat<kScoreVectors>([&](auto v) TAKT_INLINE { k[v] = load(row + v * 16); });
            repeat<kQueries>([&](auto i) TAKT_INLINE {
                const Lanes x = broadcast(q[i][d]);
                repeat<kScoreVectors>([&](auto v) TAKT_INLINE { s[i][v] = fma(x, k[v], s[i][v]); });
            });
        }
        repeat<kQueries>([&](auto i) TAKT_INLINE {
            repeat<kScoreVectors>([&](auto v) TAKT_INLINE { store(scores[i] + (first + v) * 16, s[i][v]); });
        });
    }
}

/// Scores of one tile to weights, in place; [low, high) are the positions that the query sees, relative to the tile. Returns the
/// factor on what the state has gathered.
float soften(const AttentionJob& j, int low, int high, const SoftmaxState& state, float* scores) {
    const Lanes hidden = broadcast(-std::numeric_limits<float>::infinity());
    Lanes s[4];
    Lanes largest = hidden;
    repeat<4>([&](auto v) TAKT_INLINE {
        constexpr int i = decltype(v)::value * 16;
        s[v] = load(scores + i) * broadcast(j.scale);
        if (j.soft_cap > 0.0f) s[v] = cap_lanes(s[v], j.soft_cap);
        const int from = low > i ? (low - i < 16 ? low - i : 16) : 0;
        const int to = high > i ? (high - i < 16 ? high - i : 16) : 0;
        if (from > 0 || to < 16) s[v] = from < to ? select_range(s[v], hidden, from, to) : hidden;
        largest = max(largest, s[v]);
    });
    const float tile_max = reduce_max(largest);
    const float new_max = *state.max > tile_max ? *state.max : tile_max;
    const float correction = *state.sum == 0.0f ? 0.0f : exp_one(*state.max - new_max);
    Lanes sum = zero();
    repeat<4>([&](auto v) TAKT_INLINE {
        const Lanes p = exp_lanes(s[v] - broadcast(new_max));
        sum = sum + p;
        store(scores + decltype(v)::value * 16, p);
    });
    *state.sum = *state.sum * correction + reduce_add(sum);
    *state.max = new_max;
    return correction;
}

/// A query that sees part of the tile.
struct TileQuery {
    const float* q;
    float* scores;
    float* acc;
    float correction;
};

/// acc = acc * correction + weights x values for kQueries queries and kLanes x 16 dimensions from `d` on. row(t, d) gives the address
/// of a position's values, read(row, i) 16 of them. Weights outside a query's range are 0.
template <int kQueries, int kLanes, class Row, class Read>
TAKT_LANES void weigh_values(const TileQuery* queries, int d, const Row& row, const Read& read, int low, int high) {
    Lanes a[kQueries][kLanes];
    repeat<kQueries>([&](auto i) TAKT_INLINE {
        const Lanes correction = broadcast(queries[i].correction);
        repeat<kLanes>([&](auto l) TAKT_INLINE { a[i][l] = load(queries[i].acc + d + l * 16) * correction; });
    });
    const float* weights[kQueries];
    repeat<kQueries>([&](auto i) TAKT_INLINE { weights[i] = queries[i].scores; });
    for (int t = low; t < high; ++t) {
        const auto* from = row(t, d);
        Lanes v[kLanes];
        repeat<kLanes>([&](auto l) TAKT_INLINE { v[l] = read(from, l * 16); });
        repeat<kQueries>([&](auto i) TAKT_INLINE {
            const Lanes p = broadcast(weights[i][t]);
            repeat<kLanes>([&](auto l) TAKT_INLINE { a[i][l] = fma(p, v[l], a[i][l]); });
        });
    }
    repeat<kQueries>([&](auto i) TAKT_INLINE {
        repeat<kLanes>([&](auto l) TAKT_INLINE { store(queries[i].acc + d + l * 16, a[i][l]); });
    });
}

template <int kQueries>
void score_some(const TileQuery* queries, const float* keys, int dims) {
    const float* q[kQueries];
    float* scores[kQueries];
    for (int i = 0; i < kQueries; ++i) {
        q[i] = queries[i].q;
        scores[i] = queries[i].scores;
    }
    score_queries<kQueries>(q, keys, dims, scores);
}

/// The same scores straight from the cache, where no other queries share the transposed keys.
template <int kQueries>
void score_few(const AttentionJob& j, const TileRows& rows, int count, const TileQuery* queries) {
    for (int t = 0; t < kTilePositions; t += 16) {
        Lanes s[kQueries];
        repeat<kQueries>([&](auto i) TAKT_INLINE { s[i] = zero(); });
        for (int i = 0; i < 16; ++i) prefetch_next(j, rows, j.layer, t + i);
        for (int d = 0; d < (t < count ? j.head_dim : 0); d += 16) {
            Lanes columns[16];
            load_key_columns(j, rows, count, t, d, columns);
            repeat<16>([&](auto c) TAKT_INLINE {
                repeat<kQueries>([&](auto i) TAKT_INLINE { s[i] = fma(broadcast(queries[i].q[d + c]), columns[c], s[i]); });
            });
        }
        repeat<kQueries>([&](auto i) TAKT_INLINE { store(queries[i].scores + t, s[i]); });
    }
}

template <int kQueries>
void weigh_some(const TileQuery* queries, const float* values, int dims, int low, int high) {
    const auto row = [&](int t, int d) { return values + t * dims + d; };
    const auto read = [](const float* p, int d) { return load(p + d); };
    int d = 0;
    for (; d + kValueLanes * 16 <= dims; d += kValueLanes * 16) {
        weigh_values<kQueries, kValueLanes>(queries, d, row, read, low, high);
    }
    for (; d < dims; d += 16) weigh_values<kQueries, 1>(queries, d, row, read, low, high);
}

/// The same straight from the cache.
template <int kQueries>
void weigh_few(const AttentionJob& j, const TileRows& rows, const TileQuery* queries, int low, int high) {
    for (int t = 0; t < kTilePositions; ++t) prefetch_next(j, rows, j.layer_v, t);
    const auto row = [&](int t, int d) { return j.layer_v + rows.offset[t] + static_cast<size_t>(d) * dtype_bytes(j.type, 1); };
    const auto weigh = [&](const auto& read) TAKT_INLINE {
        int d = 0;
        for (; d + kValueLanes * 16 <= j.head_dim; d += kValueLanes * 16) {
            weigh_values<kQueries, kValueLanes>(queries, d, row, read, low, high);
        }
        for (; d < j.head_dim; d += 16) weigh_values<kQueries, 1>(queries, d, row, read, low, high);
    };
    if (j.type == DType::f16) return weigh([](const uint8_t* p, int d) { return load_f16(p + 2 * d); });
    if (j.type == DType::bf16) return weigh([](const uint8_t* p, int d) { return load_bf16(p + 2 * d); });
    weigh([](const uint8_t* p, int d) { return load(reinterpret_cast<const float*>(p) + d); });
}

/// body(integral_constant queries at once, first query) over `count` queries.
template <class F>
void in_batches(int count, F body) {
    int i = 0;
    for (; i + kQueriesPerPass <= count; i += kQueriesPerPass) body(std::integral_constant<int, kQueriesPerPass>{}, i);
    if constexpr (kQueriesPerPass > 3) {
        if (count - i == 3) return body(std::integral_constant<int, 3>{}, i);
    }
    if constexpr (kQueriesPerPass > 2) {
        if (count - i == 2) return body(std::integral_constant<int, 2>{}, i);
    }
    if constexpr (kQueriesPerPass > 1) {
        if (count - i == 1) return body(std::integral_constant<int, 1>{}, i);
    }
}

/// The parts of a job's scratch, see attention_scratch_floats().
struct AttentionScratch {
    size_t state_floats;
    float *chunks, *totals, *scores, *keys, *values;
    AttentionScratch(float* base, int num_queries, int dims) : state_floats(static_cast<size_t>(dims) + 16) {
        const auto n = static_cast<size_t>(num_queries);
        chunks = base;
        totals = chunks + n * state_floats;
        scores = totals + n * state_floats;
        keys = scores + n * kTilePositions;
        values = keys + kTilePositions * dims;
    }
    [[nodiscard]] SoftmaxState chunk(int n, int dims) const { return {chunks + static_cast<size_t>(n) * state_floats, dims}; }
    [[nodiscard]] SoftmaxState total(int n, int dims) const { return {totals + static_cast<size_t>(n) * state_floats, dims}; }
};

/// All queries of the job over the tile that begins at position `tile`.
void attend_tile(const AttentionJob& j, int tile, const AttentionScratch& scratch) {
    const int dims = j.head_dim;
    const int count = j.kv_end - tile < kTilePositions ? j.kv_end - tile : kTilePositions;
    TileQuery queries[kMaxJobQueries];
    struct Range {
        int low, high, query;
    } ranges[kMaxJobQueries];
    int num_seen = 0;
    int lowest = kTilePositions, highest = 0;
    for (int n = 0; n < j.num_rows * j.num_heads; ++n) {
        const int position = j.first_position + n / j.num_heads;
        const int high = position + 1 - tile < count ? position + 1 - tile : count;
        const int first = j.window > 0 ? position - j.window + 1 - tile : 0;
        const int low = first > 0 ? first : 0;
        if (low >= high) continue;
        lowest = low < lowest ? low : lowest;
        highest = high > highest ? high : highest;
        const auto head = static_cast<size_t>(n % j.num_heads) * static_cast<size_t>(dims);
        const float* q = j.q + static_cast<size_t>(n / j.num_heads) * j.q_stride + head;
        queries[num_seen] = {q, scratch.scores + n * kTilePositions, scratch.chunk(n, dims).acc, 0.0f};
        ranges[num_seen++] = {low, high, n};
    }
    if (num_seen == 0) return;
    const TileRows rows(j, tile);
    const bool few = num_seen <= kQueriesPerPass;
    if (!few) load_keys(j, rows, count, scratch.keys);
    in_batches(num_seen, [&](auto batch, int i) {
        constexpr int n = decltype(batch)::value;
        few ? score_few<n>(j, rows, count, queries + i) : score_some<n>(queries + i, scratch.keys, dims);
    });
    for (int i = 0; i < num_seen; ++i) {
        const Range& r = ranges[i];
        queries[i].correction = soften(j, r.low, r.high, scratch.chunk(r.query, dims), queries[i].scores);
    }
    if (!few) load_values(j, rows, count, scratch.values);
    in_batches(num_seen, [&](auto batch, int i) {
        constexpr int n = decltype(batch)::value;
        few ? weigh_few<n>(j, rows, queries + i, lowest, highest) : weigh_some<n>(queries + i, scratch.values, dims, lowest, highest);
    });
}

void attention(const AttentionJob& j) {
    const int dims = j.head_dim;
    const int num_queries = j.num_rows * j.num_heads;
    const AttentionScratch scratch(j.scratch, num_queries, dims);
    for (int n = 0; n < num_queries; ++n) scratch.total(n, dims).clear(dims);
    for (int chunk = j.kv_begin / kChunkPositions * kChunkPositions; chunk < j.kv_end; chunk += kChunkPositions) {
        for (int n = 0; n < num_queries; ++n) scratch.chunk(n, dims).clear(dims);
        for (int tile = chunk; tile < chunk + kChunkPositions && tile < j.kv_end; tile += kTilePositions) attend_tile(j, tile, scratch);
        for (int n = 0; n < num_queries; ++n) {
            if (*scratch.chunk(n, dims).sum != 0.0f) fold(scratch.total(n, dims), scratch.chunk(n, dims), dims);
        }
    }
    for (int n = 0; n < num_queries; ++n) {
        const SoftmaxState s = scratch.total(n, dims);
        const auto row = static_cast<size_t>(n / j.num_heads);
        const auto head = static_cast<size_t>(n % j.num_heads);
        if (j.partial != nullptr) {
            std::memcpy(j.partial + static_cast<size_t>(n) * scratch.state_floats, s.acc, sizeof(float) * (static_cast<size_t>(dims) + 2));
        } else {
            write_head(s, dims, j.out + row * j.out_stride + head * static_cast<size_t>(dims));
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
