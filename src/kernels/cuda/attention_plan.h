// The attention work list of one step: which block of the grid reads which keys for which query rows. Built once a step
// on the host and shared by all layers. Pure host arithmetic; the kernels read the same packing.
//
// Query rows of a segment and the query heads of one KV head are packed into one axis: m = row * group + head, group =
// heads per KV head. A decode item has at most 16 of them and is split along KV until the grid is full; a prefill item
// has at most 128. AttentionWork as this device uses it: `row_begin` first m, `num_rows` count of m, `partial` first row
// of its partial results (-1: writes the output itself), `group` its first item | number of items << 20 (items that share
// a result lie side by side). Bits 16 and up of the first item's `segment` count the finished ones; the last resets them.
// header.reserved: the number of decode items, which come first; from bit 32 on the number of early blocks, from bit 42 on that of
// early items. In a mixed step the prefill items get multiprocessors of their own and the first decode blocks the others; so these
// begin early, take the early items between them, and the rest is for all blocks, of which most start when prefill items end.
#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace takt::cuda {

constexpr int32_t kDecodeRows = 16;   ///< of the packed axis, an item
constexpr int32_t kPrefillRows = 128;
constexpr int32_t kDecodeUnit = 64;    ///< positions that one block's four warps take at once
constexpr int32_t kPartialExtra = 4;   ///< floats after a partial row's values: maximum, sum, two of padding
constexpr int32_t kSplitShift = 20;
constexpr int32_t kBlocksShift = 32, kBlocksMask = 1023, kEarlyItemsShift = 42;   ///< of header.reserved
constexpr int32_t kMaxSplits = 128;
constexpr int32_t kMaxPrefillSplits = 512;    ///< items of split prefill tiles in one step
constexpr int32_t kMostPrefillParts = 32;     ///< of one prefill result
constexpr int32_t kSmallSteps = 8;            ///< steps of up to so many rows have decode items only

/// Whether a step of decodes alone has about as many results as there are multiprocessors, so that each result gets a block of eight
/// warps with one to itself: a result that two blocks of four warps share costs a combination. `rows`: of the step, padded or not (a
/// step planned for the other kind of block is computed as well, only slower).
bool has_one_block_results(int32_t rows, int32_t kv_heads, int32_t num_sms);
Status plan_attention(const AttentionPlanParams& params, int32_t num_sms);
int32_t max_attention_work(const KvLayout& kv, int32_t num_heads, int32_t rows, int32_t segments, int32_t num_sms);
size_t attention_scratch_bytes(const KvLayout& kv, int32_t max_work);

}   // namespace takt::cuda
