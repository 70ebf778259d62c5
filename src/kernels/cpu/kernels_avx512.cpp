// The CPU kernels on the avx512 path. Nothing here may be called before the CPU was asked; see kernel_table.h.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/lanes_avx512.h"

#include "kernels/cpu/kernel_attention.h"
#include "kernels/cpu/kernel_dots_quads.h"
#include "kernels/cpu/kernel_dots_paired.h"
#include "kernels/cpu/kernel_product.h"
#include "kernels/cpu/kernel_product_wide.h"

namespace takt::cpu {

namespace {

template <bool kPairs>
constexpr KernelTable kTable{kPairs ? "avx512, columns in pairs" : "avx512", kMaxTileRows, quantise, product, product_panel<kPairs>,
                             panel_rows<kPairs>, widen<kPairs>, kPairs ? pair_sums : nullptr, product_float, rms_norm, gate, soft_cap, add,
                             add_tile, attention, merge, store_kv, quantise_kv, argmax, sum_exp};

}  // namespace

const KernelTable& avx512_kernels(bool adds_beside_dots) { return adds_beside_dots ? kTable<true> : kTable<false>; }

}  // namespace takt::cpu
