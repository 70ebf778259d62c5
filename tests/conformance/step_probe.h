// StepProbe: a step's input with a handful of rows, so that the conformance suite can run the operation that writes the paged cache
// on any device: the first half of a layer where there is arithmetic, the hash step on the sim device.
#pragma once

#include <memory>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"

namespace takt::conformance {

class StepProbe {
public:
    static constexpr int32_t kRows = 4;       // of the recorded shape
    static constexpr int32_t kBlocks = 4;     // the dummy block included
    static constexpr uint8_t kUntouched = 0x3C;

    /// Takes all memory; nothing is queued.
    explicit StepProbe(Device& device);

    /// Puts `kv_slots.size()` true rows and padding up to kRows into the host's copy; `queue_input` brings it over.
    void set_rows(const std::vector<int32_t>& kv_slots);
    [[nodiscard]] Status queue_input(Stream& stream);
    /// The cache filled with kUntouched.
    [[nodiscard]] Status queue_clear(Stream& stream);
    [[nodiscard]] Status queue_step(Stream& stream);
    /// KV slots of the cache that differ from kUntouched; the cache must be idle. Queues a copy on `stream` and synchronises.
    [[nodiscard]] std::vector<int32_t> written_slots(Stream& stream);

private:
    Device& device_;
    KvLayout kv_;
    StepInputLayout layout_;
    Buffer host_, input_, cache_, read_back_, hidden_, q_, norm_, frequencies_, results_, slot_tokens_;
    std::unique_ptr<Linear> qkv_;
};

}  // namespace takt::conformance
