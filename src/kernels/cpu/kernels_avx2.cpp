// The CPU kernels on the avx2 path. Nothing here may be called before the CPU was asked; see kernel_table.h.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/lanes_avx2.h"

#include "kernels/cpu/kernel_attention.h"
#include "kernels/cpu/kernel_dots_pairs.h"
#include "kernels/cpu/kernel_product_panel.h"

namespace takt::cpu {

const KernelTable& avx2_kernels() {
    static constexpr KernelTable kTable{"avx2", kMaxTileRows, quantise, product, product_panel, panel_rows, nullptr, nullptr,
                                        product_float, rms_norm, gate, soft_cap, add, add_tile, attention, merge, store_kv, quantise_kv,
                                        argmax, sum_exp};
    return kTable;
}

}  // namespace takt::cpu
