// EndForecast: when the step in flight will end, by the engine's clock. Steps stamp their ends by the device's clock: the least
// lateness with which the engine has seen one tells the distance of the two clocks. How much sooner than predicted steps of a kind
// have lately ended is held back, so that the next step is planned and the event awaited in time. Pure; knows no clock itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace takt {

class EndForecast {
public:
    /// A step ended: predicted and measured durations, its end by the device's clock, and when the engine saw it. `device_end_ns` 0:
    /// the device has no stamps, and the step ended when it was seen.
    void observe(bool with_prefill, uint64_t predicted_ns, uint64_t device_ns, uint64_t device_end_ns, uint64_t seen_ns);

    /// The end of the step observed last, by the engine's clock.
    [[nodiscard]] uint64_t last_end_ns() const { return last_end_ns_; }
    /// So much sooner than predicted may a step of this kind end.
    [[nodiscard]] uint64_t early_ns(bool with_prefill) const { return static_cast<uint64_t>(early_[with_prefill ? 1 : 0]); }

private:
    std::array<double, 2> early_{};
    int64_t offset_ns_ = 0;           // engine's clock less the device's
    uint64_t offset_seen_ns_ = 0;     // when it was last corrected; 0: never
    uint64_t last_end_ns_ = 0;
};

}  // namespace takt
