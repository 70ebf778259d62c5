// The order of packing, taking and reusing the two slots; see input_fetch.h.
#include "kernels/cuda/input_fetch.h"

#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {

std::shared_ptr<InputFetch> InputFetch::create() {
    std::shared_ptr<InputFetch> made(new InputFetch());
    void* memory = nullptr;
    const size_t bytes = kStateBytes + 2 * kFetchSlotBytes;
    int least = 0, greatest = 0;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (e == cudaSuccess) e = cudaMalloc(&memory, bytes);
    made->memory_ = static_cast<uint8_t*>(memory);
    if (e == cudaSuccess) e = cudaMemset(memory, 0, bytes);
    if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&made->side_, cudaStreamNonBlocking, greatest);
    for (int i = 0; i < 2 && e == cudaSuccess; ++i) {
        e = cudaEventCreateWithFlags(&made->packed_[i], cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&made->consumed_[i], cudaEventDisableTiming);
    }
    if (e == cudaSuccess) return made;
    cudaGetLastError();
    return nullptr;
}

InputFetch::~InputFetch() {
    if (side_ != nullptr) cudaStreamSynchronize(side_);
    for (int i = 0; i < 2; ++i) {
        if (packed_[i] != nullptr) cudaEventDestroy(packed_[i]);
        if (consumed_[i] != nullptr) cudaEventDestroy(consumed_[i]);
    }
    if (side_ != nullptr) cudaStreamDestroy(side_);
    cudaFree(memory_);
}

bool InputFetch::fits(const CopyPieces& pieces) {
    size_t bytes = kFetchHeaderBytes;
    for (int i = 0; i < pieces.num_pieces; ++i) bytes += (pieces.pieces[i].bytes + 15) / 16 * 16;
    return bytes <= kFetchSlotBytes;
}

Status InputFetch::record(cudaStream_t stream) { return run_fetch(stream, memory_, memory_ + kStateBytes); }

cudaError_t InputFetch::launch(cudaStream_t stream, const CopyPieces& pieces, cudaGraphExec_t graph) {
    const auto slot = static_cast<size_t>(num_launches_ % 2);
    cudaError_t e = cudaSuccess;
    // The slot is free once the launch before the last has taken from it; packing for it goes on meanwhile.
    if (num_launches_ >= 2) e = cudaStreamWaitEvent(side_, consumed_[slot], 0);
    if (e == cudaSuccess && !run_pack(side_, pieces, memory_ + kStateBytes + slot * kFetchSlotBytes).ok()) {
        e = cudaPeekAtLastError();
        if (e == cudaSuccess) e = cudaErrorLaunchFailure;
    }
    if (e == cudaSuccess) e = cudaEventRecord(packed_[slot], side_);
    // Launches take the slots in turn, whatever stream they are on.
    if (e == cudaSuccess && last_ != nullptr && last_ != stream) e = cudaStreamWaitEvent(stream, consumed_[1 - slot], 0);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(stream, packed_[slot], 0);
    if (e == cudaSuccess) e = cudaGraphLaunch(graph, stream);
    if (e == cudaSuccess) e = cudaEventRecord(consumed_[slot], stream);
    ++num_launches_;
    last_ = stream;
    return e;
}

}   // namespace takt::cuda
