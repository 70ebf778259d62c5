// A stamp is one thread. A copy gives every 4 KiB of a piece a block, whose threads have all their loads in flight at once: over
// the host's bus the latency is what counts.
#include <algorithm>

#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/small_kernels.h"

namespace takt::cuda {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr int kThreads = 256;   // of 16 bytes each

__global__ void __launch_bounds__(kThreads) copy_pieces_kernel(const CopyPieces all) {
    const CopyPieces::Piece& piece = all.pieces[blockIdx.y];
    const uint64_t begin = blockIdx.x * kBlockBytes;
    if (begin >= piece.bytes) return;
    const uint64_t bytes = min(kBlockBytes, static_cast<uint64_t>(piece.bytes - begin));
    const uint8_t* src = piece.src + begin;
    uint8_t* dst = piece.dst + begin;
    const uint64_t thread = threadIdx.x;
    uint64_t done = 0;
    if ((reinterpret_cast<uintptr_t>(src) | reinterpret_cast<uintptr_t>(dst)) % 16 == 0) {
        done = bytes / 16 * 16;
        if (thread < bytes / 16) reinterpret_cast<uint4*>(dst)[thread] = reinterpret_cast<const uint4*>(src)[thread];
    }
    for (uint64_t i = done + thread; i < bytes; i += kThreads) dst[i] = src[i];
}

__global__ void stamp_kernel(uint64_t* base, const int32_t* index, uint64_t stride) {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    base[(index != nullptr ? static_cast<uint64_t>(*index) : 0) * stride] = now;
}

}   // namespace

Status run_copy_pieces(cudaStream_t stream, const CopyPieces& all) {
    uint64_t largest = 0;
    for (int i = 0; i < all.num_pieces; ++i) largest = std::max(largest, all.pieces[i].bytes);
    if (largest == 0) return {};
    const dim3 grid(static_cast<unsigned>((largest + kBlockBytes - 1) / kBlockBytes),
                    static_cast<unsigned>(all.num_pieces));
    return launch_kernel(stream, grid, dim3(kThreads), 0, Edge::full, copy_pieces_kernel, all);
}

Status run_stamp(cudaStream_t stream, uint64_t* base, const int32_t* index, size_t stride) {
    return launch_kernel(stream, dim3(1), dim3(1), 0, Edge::full, stamp_kernel, base, index,
                         static_cast<uint64_t>(stride));
}

Status check_kernel_image() {
    cudaFuncAttributes attributes = {};
    const Status s = status_of(cudaFuncGetAttributes(&attributes, stamp_kernel));
    if (!s.ok()) cudaGetLastError();
    return s;
}

}   // namespace takt::cuda
