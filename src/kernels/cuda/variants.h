// Trials of kernels that have no measured place yet: which of them run. Read once from TAKT_CUDA_TRIALS, words between commas, each
// "name" or "name=number"; tests set them directly. All off unless named.
#pragma once

#include <cstdint>

namespace takt::cuda {

struct Trials {
    int32_t qkv_end_rows = 0;      // qkv_end=ROWS: steps of 5 to so many rows finish q, k and v in their product (qkv_split.h)
    int32_t qkv_end_splits = 0;    // qkv_splits=2|4: blocks of its clusters; 0: chosen
    int32_t qkv_end_columns = 0;   // qkv_columns=96|128|160|192|256: of its tiles; 0: chosen
    bool panels = false;           // panels: weights of gate and up lie in panels of 64 columns (set before they are loaded)
    bool one_kernel = false;       // one_kernel: the library's products that take one kernel only
};

Trials& trials();

}   // namespace takt::cuda
