// RowUse: what the products of a layer need of the rows that are made ready for them.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/cpu/kernel_table.h"

namespace takt::cpu {

struct RowUse {
    bool floats = false;                                         ///< some weights are plain: float32 beside integers
    int fewest_panel_rows = std::numeric_limits<int>::max();     ///< of all types

    IntegerLimits limits;                                        ///< of 16-bit integers

    void add(DType type, const KernelTable& kernels) {
        if (type == DType::q6_k) limits = kScaledLimits;
        floats = floats || is_plain(type);
        fewest_panel_rows = std::min(fewest_panel_rows, kernels.fewest_panel_rows(type));
    }
};

}  // namespace takt::cpu
