// LateCause: what made a gap longer than promised. Pure; shared by the engine's metrics and the simulator.
#pragma once

#include <cstddef>
#include <cstdint>

namespace takt {

enum class LateCause : uint8_t { prefill, padding, preemption, host, reader, device };
constexpr size_t kNumLateCauses = 6;
constexpr const char* kLateCauseNames[kNumLateCauses] = {"prefill", "padding", "preemption", "host", "reader", "device"};

struct LateFacts {
    uint64_t gap_ns = 0, promised_ns = 0;
    uint64_t device_ns = 0;       ///< of the step that brought the token
    uint64_t predicted_ns = 0;    ///< of the same
    uint64_t padding_ns = 0;      ///< of the prediction, what the empty rows of the shape take
    int32_t prefill_rows = 0;
    bool was_preempted = false;   ///< since its last token
    bool was_paused = false;      ///< its reader did not read
};

/// The first of: the reader, a preemption, the host (without whose part the gap would have been kept), a device that took far
/// longer than predicted, the step's prefill rows, its padding (without whose cost it would have been kept); else the device, which
/// is too slow for the promise.
LateCause late_cause(const LateFacts& facts);

}  // namespace takt
