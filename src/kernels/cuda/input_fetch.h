// InputFetch: brings the small copies that precede a graph's launch over the bus while the step before still runs, so that between two
// steps only a copy within the device is left. A stream of its own packs them into one of two slots of device memory; the first
// node of every graph takes them from there to their places. A word in device memory tells it that they are there: events between
// the two streams would be three more calls of the driver a step. One a stream; engine thread only.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/small_kernels.h"

namespace takt::cuda {

class InputFetch {
public:
    /// For the graphs captured on `owner`. Null where memory or a stream is lacking.
    static std::shared_ptr<InputFetch> create(cudaStream_t owner);
    ~InputFetch();
    InputFetch(const InputFetch&) = delete;
    InputFetch& operator=(const InputFetch&) = delete;

    /// Whether the pieces fit a slot together.
    static bool fits(const CopyPieces& pieces);
    /// The first node of a graph that is being captured on `stream`.
    [[nodiscard]] Status record(cudaStream_t stream);
    /// Launches a graph that begins with that node; the pieces are at their places before its second one runs. Their sources are
    /// read from now on, ahead of what `stream` still has to do: no operation of the device may be going to write them.
    /// `is_free`: the owner's launch that had the next slot is known to be over.
    cudaError_t launch(cudaStream_t stream, const CopyPieces& pieces, cudaGraphExec_t graph, bool is_free);
    /// The slot of the next launch, 0 or 1.
    [[nodiscard]] size_t next_slot() const { return static_cast<size_t>(num_launches_ % 2); }
    /// The owner goes; everything launched on it is over. Graphs may still be launched on other streams.
    void release_owner() { owner_ = nullptr; }

private:
    explicit InputFetch(cudaStream_t owner) : owner_(owner) {}
    cudaError_t wait_for_slot(cudaStream_t waiting, size_t slot);

    uint8_t* memory_ = nullptr;   // state, two slots
    cudaStream_t side_ = nullptr;
    cudaStream_t owner_;
    cudaEvent_t consumed_[2] = {};
    bool is_marked_[2] = {};      // consumed_ was recorded behind the slot's last launch; always where it was not on the owner
    uint64_t num_launches_ = 0;
    cudaStream_t last_ = nullptr;
};

}   // namespace takt::cuda
