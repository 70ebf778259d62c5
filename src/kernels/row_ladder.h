// row_ladder: the row counts that steps are recorded for. Pure; shared by the devices.
#pragma once

#include <cstdint>
#include <vector>

namespace takt {

/// 1, 2, 4 ... doubling to `step`, then the multiples of `step` and the first two half steps above it (0: doubling goes on) up to
/// max_rows, with max_running and max_rows themselves always among them. Ascending, no doubles.
std::vector<int32_t> make_row_ladder(int32_t step, int32_t max_running, int32_t max_rows);

}  // namespace takt
