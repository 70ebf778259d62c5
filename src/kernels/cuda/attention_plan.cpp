// Cuts the step's attention into items. A decode split is chosen by simulating the grid's round-robin for a few sizes.
#include "kernels/cuda/attention_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace takt::cuda {
namespace {

constexpr int32_t kPartsABlock = 4;
constexpr int32_t kAllUnits = std::numeric_limits<int32_t>::max();
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int32_t kWhole = 1 << 24;     // more units than any context has
constexpr int32_t kPrefillUnit = 128;   // prefill tiles lie at absolute multiples of it in an unsplit plan
// Microseconds on an H200 at head dimension 128, for the division of a mixed step: a tile of a prefill item, an item's start and
// end, those of a block's further ones, those of one of several parts that a block has (25 to 38 in steps measured, what the parts leave
// in memory and read again among it; but prompts of 32k took least with 16), the combination of parts that run together, alone and
// beside decodes; a decode unit in one of two blocks of a multiprocessor where others have prefill items (on all of them it takes twice
// as long, the memory's rate, which is the next one); until a block has begun, until one that takes a multiprocessor over from a prefill
// item has; what more parts must gain.
constexpr double kPrefillTileUs = 2.2, kItemUs = 10, kNextItemUs = 6, kPartUs = 16, kCombineUs = 4, kCombineBesideUs = 11,
                 kDecodeUnitUs = 1.1, kDecodeReadUs = 0.0076, kBeginUs = 6, kTakeOverUs = 12, kWorthUs = 2, kNeverUs = 1e9;
// What a decode item costs beside its units, in units: one that is whole, one of several parts. A unit takes half as long beside prefill
// items, so the same microseconds are more units there.
constexpr double kWholeUnits = 0.7, kSplitUnits = 1.5, kWholeUnitsBeside = 1.3, kSplitUnitsBeside = 4.5;

int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }
/// Pieces of at most `size` units; most results are short enough to be one.
int32_t pieces_of(int32_t units, int32_t size) { return units <= size ? 1 : std::min(ceil_div(units, size), kMaxSplits); }

struct Planner {
    const AttentionPlanParams& p;
    int32_t group;   // query heads a KV head
    int32_t num_sms;
    int32_t slots;   // blocks that take decode items
    int32_t early = 0;          // those that begin before prefill items end; 0: all begin at once
    int32_t early_units = kAllUnits;   // what each of them can do until then
    int32_t num_early = 0;      // items
    int32_t prefill_size = 0;   // tiles of a prefill part; 0: whole
    int32_t num_work = 0;
    int32_t partial_rows = 0;
    bool overflow = false;

    [[nodiscard]] const SegmentInput& segment(int32_t s) const { return p.host.segments[s]; }
    [[nodiscard]] bool is_decode(int32_t s) const {
        return !p.deterministic && (segment(s).num_rows * group <= kDecodeRows || p.host.header->num_rows <= kSmallSteps);
    }
    [[nodiscard]] int32_t results(int32_t s) const { return ceil_div(segment(s).num_rows * group, kDecodeRows); }

    /// First position that rows from `row` on can see, rounded down to a multiple of `unit`.
    [[nodiscard]] int32_t kv_low(int32_t s, int32_t row, int32_t unit) const {
        if (p.window <= 0) return 0;
        return std::max(0, segment(s).position_begin + row - p.window + 1) / unit * unit;
    }
    [[nodiscard]] int32_t decode_units(int32_t s) const {
        return ceil_div(segment(s).position_begin + segment(s).num_rows - kv_low(s, 0, kDecodeUnit), kDecodeUnit);
    }

    /// The items of all results of a segment, none of which is cut. A step of 256 decode rows has a thousand of them.
    void emit_whole(int32_t s, int32_t low, int32_t high) {
        const int32_t all = segment(s).num_rows * group, num_heads = p.kv.num_kv_heads;
        if (num_work + num_heads * results(s) > p.capacity.max_work) {
            overflow = true;
            return;
        }
        AttentionWork* const work = p.host.work;
        int32_t at = num_work;
        for (int32_t h = 0; h < num_heads; ++h) {
            for (int32_t m = 0; m < all; m += kDecodeRows, ++at) {
                work[at] = {s, h, m, std::min(kDecodeRows, all - m), low, high, -1, at | 1 << kSplitShift};
            }
        }
        num_work = at;
    }

    /// Items of one result: `splits` ranges of [low, high) in whole units.
    void emit(int32_t s, int32_t kv_head, int32_t m_begin, int32_t m_count, int32_t low, int32_t high, int32_t splits,
              int32_t rows_a_partial, int32_t unit) {
        const int32_t units = ceil_div(high - low, unit);
        splits = std::clamp(splits, 1, std::min(units, kMaxSplits));
        if (num_work + splits > p.capacity.max_work) {
            overflow = true;
            return;
        }
        const int32_t first = num_work;
        for (int32_t i = 0; i < splits; ++i) {
            AttentionWork& w = p.host.work[num_work++];
            w = AttentionWork{};
            w.segment = s;
            w.kv_head = kv_head;
            w.row_begin = m_begin;
            w.num_rows = m_count;
            w.kv_begin = low + static_cast<int32_t>(static_cast<int64_t>(units) * i / splits) * unit;
            w.kv_end = std::min(
                high, low + static_cast<int32_t>(static_cast<int64_t>(units) * (i + 1) / splits) * unit);
            w.partial = splits > 1 ? partial_rows : -1;
            w.group = first | (splits << kSplitShift);
            if (splits > 1) partial_rows += rows_a_partial;
        }
    }

    [[nodiscard]] double item_units(bool is_split) const {
        if (early > 0) return is_split ? kSplitUnitsBeside : kWholeUnitsBeside;
        return is_split ? kSplitUnits : kWholeUnits;
    }

    /// About how long the step's decode items take when every result but the first `whole` is cut into pieces of at most `size` units, in
    /// units' worth of one block's time: the longest block's items, each with its start and end, and the combination of most parts.
    [[nodiscard]] double decode_cost(int32_t size, int64_t all_units, int32_t whole = 0) {
        const auto num_slots = static_cast<size_t>(slots);
        std::fill_n(loads.begin(), num_slots, 0.0);
        size_t at = 0;
        int32_t parts = 1;
        const auto add = [&](int32_t items, double cost) {
            for (; items > 0; --items) {
                loads[at] += cost;
                at = at + 1 == num_slots ? 0 : at + 1;
            }
        };
        for (int32_t s = 0; s < p.host.header->num_segments; ++s) {
            if (!is_decode(s)) continue;
            const int32_t units = decode_units(s), splits = pieces_of(units, size), count = p.kv.num_kv_heads * results(s);
            const int32_t uncut = std::min(count, whole);
            whole -= uncut;
            add(uncut, units + item_units(false));
            if (uncut == count) continue;
            parts = std::max(parts, splits);
            add((count - uncut) * splits, (splits == 1 ? units : ceil_div(units, splits)) + item_units(splits > 1));
        }
        const double most = *std::max_element(loads.begin(), loads.begin() + static_cast<std::ptrdiff_t>(num_slots));
        return std::max(most, least_cost(all_units)) + (parts > 1 ? 0.25 * parts : 0.0);
    }
    /// All blocks together read at the memory's rate, which is less than what a block alone would take.
    [[nodiscard]] double least_cost(int64_t all_units) const { return 1.3 * static_cast<double>(all_units) / slots; }

    /// Whether pieces of `size` units are more than the work list holds and than could be worth it.
    [[nodiscard]] bool has_many_parts(int32_t size) const {
        int64_t parts = 0, whole = 0;
        for (int32_t s = 0; s < p.host.header->num_segments; ++s) {
            if (!is_decode(s)) continue;
            const int32_t count = p.kv.num_kv_heads * results(s);
            whole += count;
            parts += int64_t{count} * pieces_of(decode_units(s), size);
        }
        return parts > std::max<int64_t>(2 * whole, int64_t{kPartsABlock} * slots);
    }

    void decode() {
        if (early > 0 && early_units < kAllUnits) return decode_in_two();
        int64_t units = 0;
        int32_t longest = 1, count = 0;
        for (int32_t s = 0; s < p.host.header->num_segments; ++s) {
            if (!is_decode(s)) continue;
            longest = std::max(longest, decode_units(s));
            count += p.kv.num_kv_heads * results(s);
            units += int64_t{decode_units(s)} * p.kv.num_kv_heads * results(s);
        }
        if (units == 0) return;
        const auto even = static_cast<int32_t>(std::max<int64_t>(1, (units + slots - 1) / slots));
        int32_t best = longest;
        double best_cost = -1;
        for (const int32_t size : {4 * even, 3 * even, 2 * even, even + ceil_div(even, 2), even, ceil_div(even, 2), ceil_div(even, 3),
                                   ceil_div(even, 4)}) {
            if (size >= longest || has_many_parts(size)) continue;
            if (best_cost < 0) best_cost = decode_cost(longest, units);   // many short results leave no choice
            if (best_cost <= least_cost(units)) break;                    // nor is anything to be gained
            const double cost = decode_cost(size, units);
            if (cost >= best_cost) continue;
            best_cost = cost;
            best = size;
        }
        if (early == 0 || !decode_evenly(longest, count, units, best_cost < 0 ? decode_cost(best, units) : best_cost))
            emit_decode(best, best, kNoLimit);
        num_early = early > 0 ? num_work : 0;
    }

    /// Beside prefill items: whole rounds of whole results and the rest in pieces for all blocks; false: costs no less than `cost`.
    bool decode_evenly(int32_t longest, int32_t count, int64_t units, double cost) {
        const int32_t whole = count - count % slots;
        if (whole == 0 || whole == count) return false;
        const int32_t size = std::max(2, ceil_div(longest, slots / (count - whole)));   // one piece a block at most
        if (decode_cost(size, units, whole) >= cost) return false;
        int64_t room = 0;
        int32_t left = whole;
        for (int32_t s = 0; s < p.host.header->num_segments && left > 0; ++s) {
            if (!is_decode(s)) continue;
            const int32_t uncut = std::min(left, p.kv.num_kv_heads * results(s));
            room += int64_t{uncut} * (decode_units(s) + 1);
            left -= uncut;
        }
        emit_decode(longest, size, room);
        return true;
    }

    /// All decode results: in pieces of at most `early_size` units until those of the early blocks hold `early_room`, then of `size`.
    void emit_decode(int32_t early_size, int32_t size, int64_t early_room) {
        int64_t used = 0;
        for (int32_t s = 0; s < p.host.header->num_segments; ++s) {
            if (!is_decode(s)) continue;
            const SegmentInput& g = segment(s);
            const int32_t low = kv_low(s, 0, kDecodeUnit), high = g.position_begin + g.num_rows, all = g.num_rows * group;
            const int32_t units = decode_units(s), parts = pieces_of(units, early_size), later = pieces_of(units, size);
            if (parts == 1 && later == 1 && early_room == kNoLimit) {
                emit_whole(s, low, high);
                continue;
            }
            for (int32_t h = 0; h < p.kv.num_kv_heads; ++h) {
                for (int32_t m = 0; m < all; m += kDecodeRows) {
                    const bool is_early = used + units + parts <= early_room;   // a unit's worth for each start
                    used = is_early ? used + units + parts : early_room;        // the early ones come first
                    emit(s, h, m, std::min(kDecodeRows, all - m), low, high, is_early ? parts : later, kDecodeRows, kDecodeUnit);
                    if (is_early) num_early = num_work;
                }
            }
        }
        if (early_room == kNoLimit) num_early = num_work;
    }

    /// Decode items for some blocks that begin at once and all others that begin when prefill items have ended.
    void decode_in_two() {
        int64_t units = 0, count = 0;
        for (int32_t s = 0; s < p.host.header->num_segments; ++s) {
            if (!is_decode(s)) continue;
            count += int64_t{p.kv.num_kv_heads} * results(s);
            units += int64_t{decode_units(s)} * p.kv.num_kv_heads * results(s);
        }
        // Whole rounds of about one result each, and not many more items than results.
        const auto average = static_cast<int32_t>(std::max<int64_t>(1, units / count));
        int32_t size = std::max(1, early_units / std::max(1, early_units / (average + 1)) - 1);
        while (units / size > 2 * slots) size *= 2;
        const int64_t room = int64_t{early} * early_units, rest = std::max<int64_t>(0, units - room);
        emit_decode(size, static_cast<int32_t>(std::max<int64_t>(2, (rest + slots - 1) / slots)), room);
    }

    /// f(segment, first packed row, rows, first position, end of positions) of every prefill result of one KV head.
    template <class F>
    void visit_prefill(F f) const {
        for (int32_t s = 0; s < p.host.header->num_segments; ++s) {
            if (is_decode(s)) continue;
            const int32_t all = segment(s).num_rows * group;
            for (int32_t m = (all - 1) / kPrefillRows * kPrefillRows; m >= 0; m -= kPrefillRows) {
                const int32_t count = std::min(kPrefillRows, all - m);
                const int32_t high = segment(s).position_begin + (m + count - 1) / group + 1;
                f(s, m, count, kv_low(s, m / group, kPrefillUnit), high);
            }
        }
    }
    [[nodiscard]] static int32_t prefill_parts(int32_t low, int32_t high, int32_t size) {
        return std::min(kMostPrefillParts, ceil_div(ceil_div(high - low, kPrefillUnit), size));
    }

    /// Parts of all prefill results and the tiles of the longest, cut at `size` tiles.
    struct PrefillParts {
        int64_t count = 0;
        int32_t longest = 0;
    };
    [[nodiscard]] PrefillParts count_parts(int32_t size) const {
        PrefillParts all;
        visit_prefill([&](int32_t, int32_t, int32_t, int32_t low, int32_t high) {
            const int32_t n = prefill_parts(low, high, size);
            all.count += int64_t{p.kv.num_kv_heads} * n;
            all.longest = std::max(all.longest, ceil_div(ceil_div(high - low, kPrefillUnit), n));
        });
        return all;
    }

    /// Microseconds of the block with most to do where there are more parts than blocks, which take them to and fro (prefill_item()).
    [[nodiscard]] double rounds_us(int32_t size, double scale) {
        loads.fill(0);
        int32_t item = 0;
        double most = 0;
        visit_prefill([&](int32_t, int32_t, int32_t, int32_t low, int32_t high) {
            const int32_t units = ceil_div(high - low, kPrefillUnit), n = prefill_parts(low, high, size);
            for (int32_t i = 0; i < p.kv.num_kv_heads * n; ++i, ++item) {
                const int32_t turn = item / num_sms, at = item % num_sms;
                double& load = loads[static_cast<size_t>(turn % 2 == 0 ? at : num_sms - 1 - at)];
                load += ceil_div(units, n) * kPrefillTileUs * scale + (n > 1 ? kPartUs : kNextItemUs);
                most = std::max(most, load);
            }
        });
        return most + kItemUs - kNextItemUs;
    }

    /// Units' worth of the busiest of `blocks` blocks beside prefill items: `count` decode results of `units` in all, whole or in parts.
    [[nodiscard]] static double rounds_units(int64_t count, double units, double blocks) {
        double least = kNeverUs;
        const double results = static_cast<double>(count);
        for (const int parts : {1, 2, 3, 4, 6, 8, 16, 32}) {
            const double item = units / results / parts + (parts > 1 ? kSplitUnitsBeside : kWholeUnitsBeside);
            least = std::min(least, std::ceil(results * parts / blocks) * item);
        }
        const double rounds = std::floor(results / blocks), average = units / results, rest = results - rounds * blocks;
        if (rounds == 0 || rest == 0) return least;
        const double piece = std::max(2.0, std::ceil(average / std::floor(blocks / rest)));   // decode_evenly()
        return std::min(least, rounds * (average + kWholeUnitsBeside) + piece + kSplitUnitsBeside + 0.25 * average / piece);
    }

    /// Units that a block has done of results of `average` units when `room` units' worth of time is over: whole ones, else parts.
    [[nodiscard]] static double units_in(double room, double average) {
        const double whole = std::floor(room / (average + kWholeUnitsBeside));
        return whole > 0 ? whole * average : std::max(0.0, room - kSplitUnitsBeside);
    }

    /// Cuts prefill results where multiprocessors would be idle otherwise. Parts that are fewer than multiprocessors divide these with the
    /// decode items, so that both end at about the same time; more of them come before the decode items, in rounds that are full.
    void divide() {
        const bool has_decodes_alone = p.host.header->num_decode_segments == p.host.header->num_segments && group <= kDecodeRows;
        if (p.deterministic || has_decodes_alone) return;
        int64_t units = 0, count = 0;
        for (int32_t s = 0; s < p.host.header->num_segments; ++s) {
            if (!is_decode(s)) continue;
            count += int64_t{p.kv.num_kv_heads} * results(s);
            units += int64_t{decode_units(s)} * p.kv.num_kv_heads * results(s);
        }
        const PrefillParts uncut = count_parts(kWhole);
        if (uncut.count == 0 || 2 * uncut.count > kMaxPrefillSplits) return;
        const double scale = p.kv.head_dim / 128.0, all = static_cast<double>(units);
        double best = -1;
        int64_t last_parts = 0;
        for (int32_t cut = 1; cut <= std::min(kMostPrefillParts, uncut.longest); ++cut) {
            const int32_t size = ceil_div(uncut.longest, cut);
            const PrefillParts parts = count_parts(size);
            if (parts.count > kMaxPrefillSplits) break;
            if (parts.count == last_parts) continue;
            last_parts = parts.count;
            const bool is_beside = parts.count < num_sms;
            const double combine_us = parts.count == uncut.count ? 0 : units > 0 ? kCombineBesideUs : kCombineUs;
            const double prefill_us = combine_us + (parts.count > num_sms ? rounds_us(size, scale)
                                                                          : parts.longest * kPrefillTileUs * scale + kItemUs);
            const double blocks = is_beside ? 2.0 * static_cast<double>(num_sms - parts.count) : 0;
            const double room = std::max(0.0, std::floor((prefill_us - kBeginUs) / (kDecodeUnitUs * scale)));   // units a block
            const double at_once = is_beside && units > 0 ? kItemUs + std::max(all * scale * kDecodeReadUs,
                                                                               rounds_units(count, all, blocks) * scale * kDecodeUnitUs)
                                                          : kNeverUs;
            const double rest = units == 0 ? 0 : all - blocks * units_in(room, all / static_cast<double>(count));
            const double in_two = rest > 0 ? prefill_us + kTakeOverUs + rest * scale * kDecodeReadUs : kNeverUs;
            const double cost = units == 0 ? prefill_us : std::max(prefill_us, std::min(at_once, in_two));
            if (best >= 0 && cost + kWorthUs >= best) continue;
            best = cost;
            prefill_size = size;
            early = units > 0 && is_beside ? static_cast<int32_t>(blocks) : 0;
            early_units = at_once <= in_two ? kAllUnits : static_cast<int32_t>(room);
        }
        if (early > 0 && early_units == kAllUnits) slots = early;
    }

    void prefill() {
        visit_prefill([&](int32_t s, int32_t m, int32_t count, int32_t low, int32_t high) {
            for (int32_t h = 0; h < p.kv.num_kv_heads; ++h) {
                const int32_t parts = prefill_size > 0 ? prefill_parts(low, high, prefill_size) : 1;
                emit(s, h, m, count, low, high, parts, kPrefillRows, kPrefillUnit);
            }
        });
    }

    std::array<double, 1024> loads{};
};

}   // namespace

bool has_one_block_results(int32_t rows, int32_t kv_heads, int32_t num_sms) {
    const int32_t results = rows * kv_heads;
    return rows > kSmallSteps && 2 * results > num_sms && results <= num_sms;
}

Status plan_attention(const AttentionPlanParams& p, int32_t num_sms) {
    const int32_t rows = p.host.header->num_rows, group = p.num_heads / p.kv.num_kv_heads;
    const bool are_decodes = rows == p.host.header->num_segments && group <= kDecodeRows;
    const bool one_a_multiprocessor = rows <= kSmallSteps || (are_decodes && p.kv.head_dim <= 128 &&
                                                              has_one_block_results(rows, p.kv.num_kv_heads, num_sms));
    Planner planner{p, group, num_sms, std::min(one_a_multiprocessor ? num_sms : 2 * num_sms, 1024)};
    planner.divide();
    planner.decode();
    const int64_t early_items = planner.early > 0 ? planner.num_early : 0;
    const int64_t early_blocks = early_items > 0 ? planner.early : std::min(planner.slots, kBlocksMask);
    p.host.header->reserved = planner.num_work | early_blocks << kBlocksShift | early_items << kEarlyItemsShift;
    planner.prefill();
    p.host.header->num_work = planner.num_work;
    if (planner.overflow) return {kStatusBadArgument, "CUDA: the attention work list is too long for this step"};
    return {};
}

int32_t max_attention_work(const KvLayout& kv, int32_t num_heads, int32_t rows, int32_t segments, int32_t num_sms) {
    const int32_t group = num_heads / kv.num_kv_heads;
    const int32_t results = segments * kv.num_kv_heads * ceil_div(group, kDecodeRows) + kSmallSteps * num_heads;
    const int32_t decode = 2 * results + 2 * kPartsABlock * num_sms;
    const auto prefill =
        static_cast<int32_t>(int64_t{rows} * group / kPrefillRows + segments) * kv.num_kv_heads + kMaxPrefillSplits;
    return decode + prefill;
}

size_t attention_scratch_bytes(const KvLayout& kv, int32_t max_work) {
    const size_t rows =
        static_cast<size_t>(max_work) * kDecodeRows + static_cast<size_t>(kMaxPrefillSplits) * kPrefillRows;
    return rows * static_cast<size_t>(kv.head_dim + kPartialExtra) * sizeof(float);
}

}   // namespace takt::cuda
