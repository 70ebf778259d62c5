// EventPool: CUDA events without timing, made once and used again: one is recorded a ticket. Engine thread only.
#pragma once

#include <cuda_runtime.h>

#include <vector>

namespace takt::cuda {

class EventPool {
public:
    EventPool() = default;
    ~EventPool() {
        for (cudaEvent_t event : free_) cudaEventDestroy(event);
    }
    EventPool(const EventPool&) = delete;
    EventPool& operator=(const EventPool&) = delete;

    /// Null where the driver has none left to give (the device is lost, then).
    [[nodiscard]] cudaEvent_t take() {
        if (free_.empty()) {
            cudaEvent_t made = nullptr;
            return cudaEventCreateWithFlags(&made, cudaEventDisableTiming) == cudaSuccess ? made : nullptr;
        }
        cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
    }
    void give_back(cudaEvent_t event) { free_.push_back(event); }

private:
    std::vector<cudaEvent_t> free_;
};

}   // namespace takt::cuda
