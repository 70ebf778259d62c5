// InputFetch: brings the small copies that precede a graph's launch over the bus while the step before still runs, so that between two
// steps only a copy within the device is left. A stream of its own packs them into one of two slots of device memory; the first
// node of every graph takes them from there to their places. One a stream; engine thread only.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/small_kernels.h"

namespace takt::cuda {

class InputFetch {
public:
    /// Null where memory or a stream is lacking.
    static std::shared_ptr<InputFetch> create();
    ~InputFetch();
    InputFetch(const InputFetch&) = delete;
    InputFetch& operator=(const InputFetch&) = delete;

    /// Whether the pieces fit a slot together.
    static bool fits(const CopyPieces& pieces);
    /// The first node of a graph that is being captured on `stream`.
    [[nodiscard]] Status record(cudaStream_t stream);
    /// Launches a graph that begins with that node; the pieces are at their places before its second one runs. Their sources are
    /// read from now on, ahead of what `stream` still has to do: no operation of the device may be going to write them.
    cudaError_t launch(cudaStream_t stream, const CopyPieces& pieces, cudaGraphExec_t graph);

private:
    InputFetch() = default;
    static constexpr size_t kStateBytes = 256;

    uint8_t* memory_ = nullptr;   // state, two slots
    cudaStream_t side_ = nullptr;
    cudaEvent_t packed_[2] = {}, consumed_[2] = {};
    uint64_t num_launches_ = 0;
    cudaStream_t last_ = nullptr;
};

}   // namespace takt::cuda
