// The order of packing, taking and reusing the two slots; see input_fetch.h.
#include "kernels/cuda/input_fetch.h"

#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {

std::shared_ptr<InputFetch> InputFetch::create(cudaStream_t owner) {
    std::shared_ptr<InputFetch> made(new InputFetch(owner));
    void* memory = nullptr;
    const size_t bytes = kFetchStateBytes + 2 * kFetchSlotBytes;
    int least = 0, greatest = 0;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (e == cudaSuccess) e = cudaMalloc(&memory, bytes);
    made->memory_ = static_cast<uint8_t*>(memory);
    if (e == cudaSuccess) e = cudaMemset(memory, 0, bytes);
    if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&made->side_, cudaStreamNonBlocking, greatest);
    for (int i = 0; i < 2 && e == cudaSuccess; ++i) e = cudaEventCreateWithFlags(&made->consumed_[i], cudaEventDisableTiming);
    if (e == cudaSuccess) return made;
    cudaGetLastError();
    return nullptr;
}

InputFetch::~InputFetch() {
    if (side_ != nullptr) cudaStreamSynchronize(side_);
    for (cudaEvent_t event : consumed_) {
        if (event != nullptr) cudaEventDestroy(event);
    }
    if (side_ != nullptr) cudaStreamDestroy(side_);
    cudaFree(memory_);
}

bool InputFetch::fits(const CopyPieces& pieces) {
    size_t bytes = kFetchHeaderBytes;
    for (int i = 0; i < pieces.num_pieces; ++i) bytes += (pieces.pieces[i].bytes + 15) / 16 * 16;
    return bytes <= kFetchSlotBytes;
}

Status InputFetch::record(cudaStream_t stream) { return run_fetch(stream, memory_, memory_ + kFetchStateBytes); }

/// `waiting` goes on once the slot's last launch is over; where that was the owner's, once all of the owner's so far are.
cudaError_t InputFetch::wait_for_slot(cudaStream_t waiting, size_t slot) {
    if (!is_marked_[slot]) {
        if (owner_ == nullptr) return cudaSuccess;
        if (const cudaError_t e = cudaEventRecord(consumed_[slot], owner_); e != cudaSuccess) return e;
        is_marked_[slot] = true;
    }
    return cudaStreamWaitEvent(waiting, consumed_[slot], 0);
}

cudaError_t InputFetch::launch(cudaStream_t stream, const CopyPieces& pieces, cudaGraphExec_t graph, bool is_free) {
    const size_t slot = next_slot();
    cudaError_t e = cudaSuccess;
    // The slot is free once the launch before the last has taken from it; packing for it goes on meanwhile.
    if (num_launches_ >= 2 && !(is_free && !is_marked_[slot])) e = wait_for_slot(side_, slot);
    if (e == cudaSuccess && !run_pack(side_, pieces, memory_, memory_ + kFetchStateBytes, static_cast<uint32_t>(num_launches_)).ok()) {
        e = cudaPeekAtLastError();
        if (e == cudaSuccess) e = cudaErrorLaunchFailure;
    }
    // Launches take the slots in turn, whatever stream they are on.
    if (e == cudaSuccess && last_ != nullptr && last_ != stream) e = wait_for_slot(stream, 1 - slot);
    if (e == cudaSuccess) e = cudaGraphLaunch(graph, stream);
    is_marked_[slot] = stream != owner_;
    if (e == cudaSuccess && is_marked_[slot]) e = cudaEventRecord(consumed_[slot], stream);
    ++num_launches_;
    last_ = stream;
    return e;
}

}   // namespace takt::cuda
