// StepTime: see the header.
#include "runtime/sim/step_time.h"

#include "kernels/row_ladder.h"
#include "kernels/step_input.h"

namespace takt::sim {

StepTime StepTime::h100() { return StepTime(Profile::built_in("h100-7b").value()); }

double StepTime::ns(const StepFeatures& features) const {
    StepHeader header;
    header.kv_read_tokens = features.kv_read_tokens;
    header.prefill_pairs = features.prefill_pairs;
    return profile_.step_ns(features.padded_rows, header);
}

std::vector<int32_t> h100_ladder(int32_t max_running) { return make_row_ladder(128, max_running, 4096); }

CostRoofline h100_roofline() {
    CostRoofline r;
    r.bytes_per_second = 2.8e12;
    r.operations_per_second = 6.5e14;
    r.launch_seconds = 3e-4;
    r.weight_bytes = 13.5e9;
    r.operations_per_row = 13.4e9;
    r.kv_bytes_per_token = 131072;
    r.operations_per_pair = 525000;
    return r;
}

}  // namespace takt::sim
