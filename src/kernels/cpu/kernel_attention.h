// Paged attention of one job: online softmax in tiles of 64 positions, afresh in each chunk of 256, chunks folded in order.
// The arithmetic of a query is a function of its own position and the cache alone: not of the rows beside it, nor of the split.
#pragma once

#include <algorithm>

#include "kernels/cpu/kernel_attention_tile.h"

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

/// The panels of K as they lie in the cache; those of two blocks of 8 positions are joined in `joined`.
TileKeys tile_keys(const AttentionJob& j, const TilePlace& place, const TilePlace& next, const uint8_t* next_keys, uint8_t* joined) {
    TileKeys keys;
    const int per_panel = kPanelPositions >> place.shift;   // runs
    keys.num_panels = (place.num_runs + per_panel - 1) / per_panel;
    const auto half = static_cast<size_t>(8) * (j.token_stride / static_cast<size_t>(j.head_dim));   // bytes of 8 positions
    const size_t panel_bytes = j.token_stride * kPanelPositions;
    for (int p = 0; p < kTilePanels; ++p) {
        keys.panels[p] = j.keys + place.at(p);
        keys.next[p] = next_keys + next.at(p * per_panel);
        if (per_panel == 1 || p >= keys.num_panels) continue;
        uint8_t* to = joined + static_cast<size_t>(p) * panel_bytes;
        const uint8_t* first = j.keys + place.at(2 * p);
        const uint8_t* second = j.keys + place.at(2 * p + 1);
        for (size_t d = 0; d < static_cast<size_t>(j.head_dim); ++d) {
            std::memcpy(to + d * 2 * half, first + d * half, half);
            std::memcpy(to + d * 2 * half + half, second + d * half, half);
        }
        keys.panels[p] = to;
    }
    return keys;
}

TileValues tile_values(const AttentionJob& j, const TilePlace& place, const TilePlace& next, const uint8_t* next_values) {
    TileValues values;
    values.shift = place.shift;
    values.stride = j.token_stride;
    for (int r = 0; r < kTilePositions >> place.shift; ++r) {
        values.runs[r] = j.values + place.at(r);
        values.next[r] = next_values + next.at(r);
    }
    return values;
}

/// The same K as float32 panels, where many queries share them.
TileKeys expand_keys(const AttentionJob& j, const TileKeys& keys, float* out) {
    TileKeys expanded;
    expanded.num_panels = keys.num_panels;
    const int num_vectors = j.head_dim;
    with_reader(j.type, [&](auto reader) TAKT_INLINE {
        using Reader = decltype(reader);
        constexpr size_t row_bytes = size_t{kPanelPositions} * Reader::kBytes;
        for (int p = 0; p < keys.num_panels; ++p) {
            float* to = out + p * kPanelPositions * num_vectors;
            for (int d = 0; d < num_vectors; ++d) {
                prefetch(keys.next[p] + static_cast<size_t>(d) * row_bytes);
                store(to + d * kPanelPositions, Reader::read(keys.panels[p] + static_cast<size_t>(d) * row_bytes));
            }
        }
    });
    for (int p = 0; p < kTilePanels; ++p) {
        expanded.panels[p] = expanded.next[p] = reinterpret_cast<const uint8_t*>(out + p * kPanelPositions * num_vectors);
    }
    return expanded;
}

/// The same V of the positions [low, high) as float32 rows.
TileValues expand_values(const AttentionJob& j, const TileValues& values, int low, int high, float* out) {
    with_reader(j.type, [&](auto reader) TAKT_INLINE {
        using Reader = decltype(reader);
        for (int t = low; t < high; ++t) {
            const int r = t >> values.shift;
            const size_t skipped = static_cast<size_t>(t - (r << values.shift)) * values.stride;
            for (size_t i = 0; i < values.stride; i += 64) prefetch(values.next[r] + skipped + i);
            for (int d = 0; d < j.head_dim; d += 16) {
                store(out + t * j.head_dim + d, Reader::read(values.runs[r] + skipped + static_cast<size_t>(d) * Reader::kBytes));
            }
        }
    });
    TileValues expanded;
    expanded.shift = 6;
    expanded.stride = static_cast<size_t>(j.head_dim) * sizeof(float);
    expanded.runs[0] = expanded.next[0] = reinterpret_cast<const uint8_t*>(out);
    return expanded;
}

/// The queries of the job that see part of the tile.
int seen_queries(const AttentionJob& j, int tile, const AttentionScratch& scratch, TileQuery* queries) {
    const int dims = j.head_dim;
    const int count = j.kv_end - tile < kTilePositions ? j.kv_end - tile : kTilePositions;
    int num_seen = 0;
    for (int row = 0; row < j.num_rows; ++row) {
        const int position = j.first_position + row;
        const int high = position + 1 - tile < count ? position + 1 - tile : count;
        const int first = j.window > 0 ? position - j.window + 1 - tile : 0;
        const int low = first > 0 ? first : 0;
        if (low >= high) continue;
        const float* q = j.q + static_cast<size_t>(row) * j.q_stride;
        for (int n = row * j.num_heads; n < (row + 1) * j.num_heads; ++n, q += dims) {
            const SoftmaxState state = scratch.chunk(n, dims);
            queries[num_seen++] = {q, scratch.scores + n * kTilePositions, state.acc, state.max, state.sum, 0.0f, low, high};
        }
    }
    return num_seen;
}

/// The tile that is fetched while `tile` is worked on: the job's next, the first of the thread's next job, or nothing new.
struct NextTile {
    const AttentionJob& job;
    TilePlace place;
    static bool goes_on(const AttentionJob& j, int tile) { return tile + kTilePositions < j.kv_end; }
    static int begin(const AttentionJob& j, int tile) {
        if (goes_on(j, tile)) return tile + kTilePositions;
        return j.next == nullptr ? tile : j.next->kv_begin / kTilePositions * kTilePositions;
    }
    NextTile(const AttentionJob& j, int tile)
        : job(goes_on(j, tile) || j.next == nullptr ? j : *j.next), place(job, begin(j, tile)) {}
};

/// Where the last of the queries' ranges ends: beyond it a tile on the diagonal has nothing for them.
int highest(const TileQuery* queries, int count) {
    int high = 0;
    for (int i = 0; i < count; ++i) high = std::max(high, queries[i].high);
    return high;
}

/// The queries over a tile's K, then over its V.
template <class Reader, bool kFetch>
void score_queries(TileQuery* queries, int count, const TileKeys& keys, int dims) {
    in_batches(count, [&](auto batch, int i) {
        constexpr int n = decltype(batch)::value;
        TileKeys seen = keys;
        if (!kFetch) seen.num_panels = std::min(keys.num_panels, (highest(queries + i, n) + kPanelPositions - 1) / kPanelPositions);
        score_tile<n, Reader, kFetch>(queries + i, seen, dims);
    });
}
template <class Reader, bool kFetch>
void weigh_queries(const TileQuery* queries, int count, const TileValues& values, int dims, int low, int high) {
    in_batches(count, [&](auto batch, int i) {
        constexpr int n = decltype(batch)::value;
        weigh_tile<n, Reader, kFetch>(queries + i, values, dims, low, kFetch ? high : std::min(high, highest(queries + i, n)));
    });
}

/// All queries of the job over the tile that begins at position `tile`.
void attend_tile(const AttentionJob& j, int tile, const AttentionScratch& scratch) {
    TileQuery queries[kMaxJobQueries];
    const int num_seen = seen_queries(j, tile, scratch, queries);
    if (num_seen == 0) return;
    int low = kTilePositions, high = 0;
    for (int i = 0; i < num_seen; ++i) {
        low = queries[i].low < low ? queries[i].low : low;
        high = queries[i].high > high ? queries[i].high : high;
    }
    const TilePlace place(j, tile);
    const NextTile next(j, tile);
    const bool few = num_seen <= kDirectQueries;
    float* joined = few ? scratch.keys : scratch.values;
    const TileKeys keys = tile_keys(j, place, next.place, next.job.keys, reinterpret_cast<uint8_t*>(joined));
    const TileValues values = tile_values(j, place, next.place, next.job.values);
    if (few) {
        with_reader(j.type, [&](auto reader) { score_queries<decltype(reader), true>(queries, num_seen, keys, j.head_dim); });
    } else {
        score_queries<FloatReader, false>(queries, num_seen, expand_keys(j, keys, scratch.keys), j.head_dim);
    }
    if (j.type == DType::i8) {
        const TileScales scales(j, place, next.place, next.job);
        for (int i = 0; i < num_seen; i += 16) soften<true>(j, &scales, queries + i, num_seen - i < 16 ? num_seen - i : 16);
    } else {
        for (int i = 0; i < num_seen; i += 16) soften<false>(j, nullptr, queries + i, num_seen - i < 16 ? num_seen - i : 16);
    }
    if (few) {
        with_reader(j.type, [&](auto reader) { weigh_queries<decltype(reader), true>(queries, num_seen, values, j.head_dim, low, high); });
    } else {
        const TileValues expanded = expand_values(j, values, low, high, scratch.values);
        weigh_queries<FloatReader, false>(queries, num_seen, expanded, j.head_dim, low, high);
    }
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
