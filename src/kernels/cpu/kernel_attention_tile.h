// The parts of attention over one tile of 64 positions: scores, weights, sums of values. Straight from the cache for few queries, from
// float32 copies for many; the arithmetic of a query is the same either way.
#pragma once

#include "kernels/cpu/kernel_math.h"
#include "kernels/cpu/kv_place.h"

namespace takt::cpu {
namespace {

/// How 16 elements of a type become float32.
struct HalfReader {
    static constexpr int kBytes = 2;
    TAKT_LANES static Lanes read(const uint8_t* p) { return load_f16(p); }
};
struct BfloatReader {
    static constexpr int kBytes = 2;
    TAKT_LANES static Lanes read(const uint8_t* p) { return load_bf16(p); }
};
struct FloatReader {
    static constexpr int kBytes = 4;
    TAKT_LANES static Lanes read(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
};
/// Integers: their scale is that of a position, and meets its score or its weight.
struct ByteReader {
    static constexpr int kBytes = 1;
    TAKT_LANES static Lanes read(const uint8_t* p) { return load_i8(p); }
};
template <class F>
TAKT_LANES void with_reader(DType type, const F& body) {
    if (type == DType::f16) return body(HalfReader{});
    if (type == DType::i8) return body(ByteReader{});
    if (type == DType::bf16) return body(BfloatReader{});
    body(FloatReader{});
}

constexpr int kTilePanels = kTilePositions / kPanelPositions;
constexpr int kMostRuns = kTilePositions / 8;

/// Where the positions of a tile lie, in runs of 16 (of 8 where blocks are that small): a panel of K and as many rows of V, at the same
/// offset in both. Without a division a position: they cost as much as its products.
struct TilePlace {
    size_t offset[kMostRuns];
    size_t scales[kMostRuns];   // of int8: where the scales of a run lie
    int shift;      // positions of a run: 1 << shift
    int num_runs;   // up to the job's end
    TilePlace(const AttentionJob& j, int tile) : shift(j.block_tokens < kPanelPositions ? 3 : 4) {
        const int run = 1 << shift;
        const int count = j.kv_end - tile < kTilePositions ? j.kv_end - tile : kTilePositions;
        num_runs = (count + run - 1) >> shift;
        const int32_t* block = j.table + tile / j.block_tokens;
        int token = tile % j.block_tokens;
        for (int r = 0; r < num_runs; ++r) {
            const size_t begin = static_cast<size_t>(*block) * j.block_stride;
            offset[r] = begin + static_cast<size_t>(token) * j.token_stride;
            scales[r] = begin + static_cast<size_t>(j.block_tokens) * j.token_stride + static_cast<size_t>(token) * sizeof(float);
            token += run;
            if (token >= j.block_tokens) {
                token = 0;
                ++block;
            }
        }
    }
    /// Past the end the last run.
    [[nodiscard]] size_t at(int r) const { return offset[r < num_runs ? r : num_runs - 1]; }
};

/// The scales of a tile's int8 keys and values; those of positions behind the context are anything.
struct TileScales {
    float keys[kTilePositions] = {};
    float values[kTilePositions] = {};
    TileScales(const AttentionJob& j, const TilePlace& place, const TilePlace& next, const AttentionJob& next_job) {
        const size_t bytes = sizeof(float) << place.shift;
        for (int r = 0; r < place.num_runs; ++r) {
            std::memcpy(keys + (r << place.shift), j.keys + place.scales[r], bytes);
            std::memcpy(values + (r << place.shift), j.values + place.scales[r], bytes);
        }
        for (int r = 0; r < next.num_runs; ++r) {
            prefetch(next_job.keys + next.scales[r]);
            prefetch(next_job.values + next.scales[r]);
        }
    }
};

/// A query that sees part of the tile, [low, high) relative to it.
struct TileQuery {
    const float* q;
    float* scores;
    float* acc;
    float* max;
    float* sum;
    float correction;
    int low, high;
};

/// K of a tile: `panels` of [dimension][16], and what to fetch meanwhile: the panels of the tile that comes next.
struct TileKeys {
    const uint8_t* panels[kTilePanels];
    const uint8_t* next[kTilePanels];
    int num_panels;
};

/// V of a tile in runs of rows, and the runs of the tile that comes next.
struct TileValues {
    const uint8_t* runs[kMostRuns];
    const uint8_t* next[kMostRuns];
    int shift;
    size_t stride;   // bytes from row to row
};

/// scores = q . K for kVectors panels from `first` on, each a chain of FMAs over the dimensions: the same however many queries and panels
/// go together. Blocks lie anywhere, so the hardware does not foresee the next tile: it is fetched a line at a time between the loads
/// of this one (into L2: two times faster than into L1).
template <int kQueries, int kVectors, class Reader, bool kFetch>
TAKT_LANES void score_panels(const TileQuery* queries, const TileKeys& keys, int first, int dims) {
    constexpr size_t row_bytes = size_t{kPanelPositions} * Reader::kBytes;
    Lanes s[kQueries][kVectors];
    repeat<kQueries>([&](auto i) TAKT_INLINE { repeat<kVectors>([&](auto v) TAKT_INLINE { s[i][v] = zero(); }); });
    const float* q[kQueries];
    repeat<kQueries>([&](auto i) TAKT_INLINE { q[i] = queries[i].q; });
    const uint8_t* from[kVectors];
    repeat<kVectors>([&](auto v) TAKT_INLINE { from[v] = keys.panels[first + v]; });
    for (int part = 0; part < kVectors; ++part) {
        const uint8_t* ahead = keys.next[first + part];
        const int end = dims * (part + 1) / kVectors;
        for (int d = dims * part / kVectors; d < end; ++d) {
            for (size_t i = 0; kFetch && i < row_bytes * kVectors; i += 64) prefetch(ahead + i);
            ahead += row_bytes * kVectors;
            Lanes k[kVectors];
            repeat<kVectors>([&](auto v) TAKT_INLINE { k[v] = Reader::read(from[v] + static_cast<size_t>(d) * row_bytes); });
            repeat<kQueries>([&](auto i) TAKT_INLINE {
                const Lanes x = broadcast(q[i][d]);
                repeat<kVectors>([&](auto v) TAKT_INLINE { s[i][v] = fma(x, k[v], s[i][v]); });
            });
        }
    }
    repeat<kQueries>([&](auto i) TAKT_INLINE {
        repeat<kVectors>([&](auto v) TAKT_INLINE { store(queries[i].scores + (first + v) * kPanelPositions, s[i][v]); });
    });
}

template <int kQueries, class Reader, bool kFetch>
void score_tile(const TileQuery* queries, const TileKeys& keys, int dims) {
    int p = 0;
    for (; p + kScoreVectors <= keys.num_panels; p += kScoreVectors) {
        score_panels<kQueries, kScoreVectors, Reader, kFetch>(queries, keys, p, dims);
    }
    for (; p < keys.num_panels; ++p) score_panels<kQueries, 1, Reader, kFetch>(queries, keys, p, dims);
}

/// Weights of 16 positions times their values' scales; 0 outside [low, high), whatever lies there.
TAKT_LANES Lanes scale_weights(Lanes weights, const float* scales, int low, int high) {
    const int from = low > 0 ? low : 0, to = high < 16 ? high : 16;
    if (from >= to) return zero();
    const Lanes scaled = weights * load(scales);
    return from > 0 || to < 16 ? select_range(scaled, zero(), from, to) : scaled;
}

/// Scales the scores of a query in place, -infinity where it does not see a position. Their maxima, lane by lane.
template <bool kScaled>
TAKT_LANES Lanes mask_scores(const AttentionJob& j, const TileScales* scales, const TileQuery& q) {
    const Lanes hidden = broadcast(-std::numeric_limits<float>::infinity());
    Lanes largest = hidden;
    repeat<kTilePanels>([&](auto v) TAKT_INLINE {
        constexpr int at = decltype(v)::value * 16;
        const int from = q.low > at ? q.low - at : 0;
        const int to = q.high - at < 16 ? q.high - at : 16;
        Lanes s = hidden;
        if (from < to) {
            s = load(q.scores + at) * broadcast(j.scale);
            if constexpr (kScaled) s = s * load(scales->keys + at);
            if (j.soft_cap > 0.0f) s = cap_lanes(s, j.soft_cap);
            if (from > 0 || to < 16) s = select_range(s, hidden, from, to);
        }
        store(q.scores + at, s);
        largest = max(largest, s);
    });
    return largest;
}

/// Scores to weights, in place, for up to 16 queries; what a query's state has gathered is to be multiplied by its correction. Scores of
/// int8 keys get their positions' scales here, weights those of the values that they multiply; sums are of the weights without.
template <bool kScaled>
void soften(const AttentionJob& j, const TileScales* scales, TileQuery* queries, int count) {
    const Lanes hidden = broadcast(-std::numeric_limits<float>::infinity());
    float shift[16] = {};   // of each query's maximum
    float scale[16];        // that its scores still have to meet
    for (int i = 0; i < count; ++i) {
        const TileQuery& q = queries[i];
        Lanes largest = hidden;
        scale[i] = 1.0f;
        float tile_max;
        if (!kScaled && j.soft_cap == 0.0f && q.low == 0 && q.high == kTilePositions) {
            // The common case: a positive scale moves no maximum.
            repeat<kTilePanels>([&](auto v) TAKT_INLINE { largest = max(largest, load(q.scores + decltype(v)::value * 16)); });
            scale[i] = j.scale;
            tile_max = reduce_max(largest) * j.scale;
        } else {
            tile_max = reduce_max(mask_scores<kScaled>(j, scales, q));
        }
        const float new_max = *q.max > tile_max ? *q.max : tile_max;
        shift[i] = *q.sum == 0.0f ? 0.0f : *q.max - new_max;
        *q.max = new_max;
    }
    store(shift, exp_lanes(load(shift)));
    for (int i = 0; i < count; ++i) {
        TileQuery& q = queries[i];
        const Lanes largest = broadcast(*q.max), left = broadcast(scale[i]);
        Lanes sum = zero();
        repeat<kTilePanels>([&](auto v) TAKT_INLINE {
            constexpr int at = decltype(v)::value * 16;
            Lanes p = exp_negative(load(q.scores + at) * left - largest);
            sum = sum + p;
            if constexpr (kScaled) p = scale_weights(p, scales->values + at, q.low - at, q.high - at);
            store(q.scores + at, p);
        });
        q.correction = *q.sum == 0.0f ? 0.0f : shift[i];
        *q.sum = *q.sum * q.correction + reduce_add(sum);
    }
}

/// acc = acc * correction + weights x values of the positions [low, high), for kLanes x 16 dimensions from `d` on, a chain of FMAs over
/// the positions. Weights outside a query's own range are 0.
template <int kQueries, int kLanes, class Reader, bool kFetch>
TAKT_LANES void weigh_lanes(const TileQuery* queries, const TileValues& values, int d, int low, int high) {
    Lanes a[kQueries][kLanes];
    const float* weights[kQueries];
    repeat<kQueries>([&](auto i) TAKT_INLINE {
        const Lanes correction = broadcast(queries[i].correction);
        repeat<kLanes>([&](auto l) TAKT_INLINE { a[i][l] = load(queries[i].acc + d + l * 16) * correction; });
        weights[i] = queries[i].scores;
    });
    for (int t = low; t < high;) {
        const int r = t >> values.shift;
        const int run_end = (r + 1) << values.shift;
        const int end = run_end < high ? run_end : high;
        const size_t skipped = static_cast<size_t>(t - (r << values.shift)) * values.stride + static_cast<size_t>(d) * Reader::kBytes;
        const uint8_t* row = values.runs[r] + skipped;
        const uint8_t* ahead = values.next[r] + skipped;
        for (; t < end; ++t, row += values.stride, ahead += values.stride) {
            for (size_t i = 0; kFetch && i < size_t{kLanes} * 16 * Reader::kBytes; i += 64) prefetch(ahead + i);
            Lanes v[kLanes];
            repeat<kLanes>([&](auto l) TAKT_INLINE { v[l] = Reader::read(row + l * 16 * Reader::kBytes); });
            repeat<kQueries>([&](auto i) TAKT_INLINE {
                const Lanes p = broadcast(weights[i][t]);
                repeat<kLanes>([&](auto l) TAKT_INLINE { a[i][l] = fma(p, v[l], a[i][l]); });
            });
        }
    }
    repeat<kQueries>([&](auto i) TAKT_INLINE {
        repeat<kLanes>([&](auto l) TAKT_INLINE { store(queries[i].acc + d + l * 16, a[i][l]); });
    });
}

template <int kQueries, class Reader, bool kFetch>
void weigh_tile(const TileQuery* queries, const TileValues& values, int dims, int low, int high) {
    int d = 0;
    for (; d + kValueLanes * 16 <= dims; d += kValueLanes * 16) {
        weigh_lanes<kQueries, kValueLanes, Reader, kFetch>(queries, values, d, low, high);
    }
    for (; d < dims; d += 16) weigh_lanes<kQueries, 1, Reader, kFetch>(queries, values, d, low, high);
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

}  // namespace
}  // namespace takt::cpu
