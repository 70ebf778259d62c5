// Calibration: see the header.
#include "runtime/cost_calibration.h"

#include <algorithm>

namespace takt {
namespace {

constexpr int kRepeats = 3;
constexpr int kSlopeRepeats = 8;
constexpr int32_t kDecodeRows = 16, kDecodeContext = 4096;
constexpr int32_t kPrefillRows = 512, kPrefillContext = 16384;

StepFeatures decode_step(const CostModel& cost, int32_t rows, int32_t context) {
    StepFeatures f;
    f.rows = f.decode_rows = rows;
    f.padded_rows = cost.padded_rows(rows);
    f.kv_read_tokens = int64_t{rows} * (context + 1);
    return f;
}

StepFeatures prefill_step(const CostModel& cost, int32_t rows, int32_t context) {
    StepFeatures f;
    f.add_slice(rows, context);
    f.padded_rows = cost.padded_rows(rows);
    return f;
}

}  // namespace

std::vector<StepFeatures> calibration_steps(const CostModel& cost) {
    std::vector<StepFeatures> steps;
    const int32_t largest = cost.row_ladder().back();
    const int32_t decode_rows = std::min(kDecodeRows, largest), prefill_rows = std::min(kPrefillRows, largest);
    for (int i = 0; i < kSlopeRepeats; ++i) {
        steps.push_back(decode_step(cost, decode_rows, i % 2 == 0 ? 0 : kDecodeContext));
        steps.push_back(prefill_step(cost, prefill_rows, i % 2 == 0 ? 0 : kPrefillContext));
    }
    for (const int32_t rows : cost.row_ladder()) {
        for (int i = 0; i < kRepeats; ++i) {
            steps.push_back(rows <= kDecodeRows ? decode_step(cost, rows, 0) : prefill_step(cost, rows, 0));
        }
    }
    return steps;
}

}  // namespace takt
