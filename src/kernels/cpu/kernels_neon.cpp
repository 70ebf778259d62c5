// The CPU kernels on the neon path. Nothing here may be called before the CPU was asked; see kernel_table.h.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/lanes_neon.h"

#include "kernels/cpu/kernel_attention.h"
#include "kernels/cpu/kernel_dots_quads.h"
#include "kernels/cpu/kernel_product.h"

namespace takt::cpu {

const KernelTable& neon_kernels() {
    static constexpr KernelTable kTable{"neon", kMaxTileRows, quantise, product, nullptr, nullptr, nullptr, nullptr,
                                        product_float, rms_norm, gate, soft_cap, add, add_tile, attention, merge, store_kv, quantise_kv,
                                        argmax, sum_exp};
    return kTable;
}

}  // namespace takt::cpu
