// The CPU kernels on the avx512 path. Nothing here may be called before the CPU was asked; see kernel_table.h.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/lanes_avx512.h"

#include "kernels/cpu/kernel_attention.h"
#include "kernels/cpu/kernel_dots_quads.h"
#include "kernels/cpu/kernel_dots_paired.h"
#include "kernels/cpu/kernel_product.h"
#include "kernels/cpu/kernel_product_wide.h"

namespace takt::cpu {

const KernelTable& avx512_kernels() {
    static constexpr KernelTable kTable{"avx512", kMaxTileRows, quantise, product, product_panel, panel_rows, widen, pair_sums,
                                        product_float, rms_norm, gate, soft_cap, add, add_tile, attention, merge, store_kv, quantise_kv,
                                        argmax, sum_exp};
    return kTable;
}

}  // namespace takt::cpu
