// The device's own small kernels, which no model knows: the step's stamp and the copies of several small pieces in one launch. Host
// side; capturable.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/status.h"

namespace takt::cuda {

constexpr int kMaxPieces = 8;

/// Pieces of pinned or device memory; their destinations do not overlap.
struct CopyPieces {
    struct Piece {
        uint8_t* dst;
        const uint8_t* src;
        uint64_t bytes;
    };
    Piece pieces[kMaxPieces] = {};
    int num_pieces = 0;
};

Status run_copy_pieces(cudaStream_t stream, const CopyPieces& pieces);

// The two halves of InputFetch. A slot holds a header that says where its pieces go, then the pieces, each on 16 bytes.
constexpr size_t kFetchHeaderBytes = 256;
constexpr size_t kFetchSlotBytes = (size_t{1} << 20) + kFetchHeaderBytes;
constexpr size_t kFetchStateBytes = 256;
/// The pieces and their header into the slot of launch `number` (of two slots, one behind the other; numbers count from 0), which
/// `state` says when it is done. `state`: kFetchStateBytes, zero at first.
Status run_pack(cudaStream_t stream, const CopyPieces& pieces, void* state, uint8_t* slots, uint32_t number);
/// From the slot whose turn it is to the pieces' destinations, once it is packed: no event orders the two.
Status run_fetch(cudaStream_t stream, void* state, const uint8_t* slots);
/// The GPU's global timer in ns into base[*index * stride]; see Stream::stamp.
Status run_stamp(cudaStream_t stream, uint64_t* base, const int32_t* index, size_t stride);
/// Whether this build holds code for the current device. Loads it.
Status check_kernel_image();
/// 10 x major + minor of the compute capability that the code for the current device was written for; less than the device's own where
/// the driver translated PTX. 0: there is none.
int code_architecture();

}   // namespace takt::cuda
