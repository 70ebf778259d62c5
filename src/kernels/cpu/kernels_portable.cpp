// The CPU kernels on the portable path. Nothing here may be called before the CPU was asked; see kernel_table.h.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/lanes_portable.h"

#include "kernels/cpu/kernel_attention.h"
#include "kernels/cpu/kernel_dots_pairs.h"
#include "kernels/cpu/kernel_product.h"

namespace takt::cpu {

const KernelTable& portable_kernels() {
    static constexpr KernelTable kTable{"portable", kMaxTileRows, quantise, product, nullptr, nullptr, nullptr, nullptr,
                                        product_float, rms_norm, gate, soft_cap, add, add_tile, attention, merge, store_kv, quantise_kv,
                                        argmax, sum_exp};
    return kTable;
}

}  // namespace takt::cpu
