// The ladder of recorded row counts; pure arithmetic. See row_ladder.h.
#include "kernels/row_ladder.h"

#include <algorithm>

#include "kernels/assert.h"

namespace takt {

std::vector<int32_t> make_row_ladder(int32_t step, int32_t max_running, int32_t max_rows) {
    TAKT_ASSERT(step >= 0 && max_running >= 1 && max_rows >= max_running);
    std::vector<int32_t> ladder;
    const int64_t doubling_end = step == 0 ? max_rows : std::min(step, max_rows);
    for (int64_t n = 1; n <= doubling_end; n *= 2) ladder.push_back(static_cast<int32_t>(n));
    if (step > 0) {
        for (int64_t n = step; n <= max_rows; n += step) ladder.push_back(static_cast<int32_t>(n));
        // Half steps where a step is much of the whole: deep in a document no more rows than that fit a gap.
        for (const int64_t n : {int64_t{step} * 3 / 2, int64_t{step} * 5 / 2}) {
            if (n < max_rows && n > step) ladder.push_back(static_cast<int32_t>(n));
        }
    }
    ladder.push_back(max_running);
    ladder.push_back(max_rows);
    std::sort(ladder.begin(), ladder.end());
    ladder.erase(std::unique(ladder.begin(), ladder.end()), ladder.end());
    return ladder;
}

}  // namespace takt
