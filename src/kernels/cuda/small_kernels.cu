// A stamp is one thread. A copy from the host gives every 4 KiB of a piece a block, whose threads have all their loads in flight at
// once: over the bus the latency is what counts.
#include <algorithm>

#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/ops_ptx.cuh"
#include "kernels/cuda/small_kernels.h"

namespace takt::cuda {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr int kThreads = 256;   // of 16 bytes each

/// This block's part of one piece.
__device__ __forceinline__ void copy_part(uint8_t* dst, const uint8_t* src, uint64_t piece_bytes) {
    const uint64_t begin = blockIdx.x * kBlockBytes;
    if (begin >= piece_bytes) return;
    const uint64_t bytes = min(kBlockBytes, static_cast<uint64_t>(piece_bytes - begin));
    src += begin;
    dst += begin;
    const uint64_t thread = threadIdx.x;
    uint64_t done = 0;
    if ((reinterpret_cast<uintptr_t>(src) | reinterpret_cast<uintptr_t>(dst)) % 16 == 0) {
        done = bytes / 16 * 16;
        if (thread < bytes / 16) reinterpret_cast<uint4*>(dst)[thread] = reinterpret_cast<const uint4*>(src)[thread];
    }
    for (uint64_t i = done + thread; i < bytes; i += kThreads) dst[i] = src[i];
}

__global__ void __launch_bounds__(kThreads) copy_pieces_kernel(const CopyPieces all) {
    const CopyPieces::Piece& piece = all.pieces[blockIdx.y];
    copy_part(piece.dst, piece.src, piece.bytes);
}

struct alignas(16) FetchHeader {
    uint32_t num_pieces;
    uint32_t num_units;   // of 16 bytes, of all pieces
    uint64_t padding;
    struct Piece {
        uint8_t* dst;
        uint32_t first_unit;
        uint32_t bytes;
    } pieces[kMaxPieces];
};
static_assert(sizeof(FetchHeader) <= kFetchHeaderBytes && sizeof(FetchHeader) % 16 == 0);

struct alignas(16) FetchState {
    uint32_t turn;       // number of the launch whose slot it is: of the launches so far
    uint32_t arrived;    // blocks of this launch that are done
    uint32_t ready[2];   // the slot holds the input of the launch with this number, less one
    uint32_t packed[2];  // blocks that have filled their part of the slot
};
static_assert(sizeof(FetchState) <= kFetchStateBytes);

__global__ void __launch_bounds__(kThreads) pack_kernel(const CopyPieces all, const FetchHeader header, FetchState* state,
                                                        uint8_t* slots, uint32_t number) {
    const int piece = static_cast<int>(blockIdx.y);
    const uint32_t index = number % 2;
    uint8_t* slot = slots + index * kFetchSlotBytes;
    if (blockIdx.x == 0 && piece == 0 && threadIdx.x == 0) *reinterpret_cast<FetchHeader*>(slot) = header;
    if (piece < all.num_pieces) {
        copy_part(slot + kFetchHeaderBytes + uint64_t{header.pieces[piece].first_unit} * 16, all.pieces[piece].src,
                  all.pieces[piece].bytes);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x != 0 || atomicAdd(&state->packed[index], 1u) != gridDim.x * gridDim.y - 1) return;
    state->packed[index] = 0;
    __threadfence();
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&state->ready[index]), "r"(number + 1) : "memory");
}

/// {turn, arrived, ready[0], ready[1]}; what was packed before is seen by what is read after.
__device__ __forceinline__ uint4 load_state(const FetchState* state) {
    uint4 v;
    asm volatile("ld.acquire.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(state)
                 : "memory");
    return v;
}

/// A thread a unit of 16 bytes, so that all loads are in flight at once. What comes next is let start at once: it is a stamp, which
/// waits for this grid's end, and itself lets nothing start early, so that whoever reads the step's input comes after both. The slot
/// was packed while the step before ran; where it was not, this waits: packing was launched before, and these blocks leave it room.
__global__ void __launch_bounds__(kThreads) fetch_kernel(FetchState* state, const uint8_t* slots) {
    __shared__ FetchHeader header;
    dependents_may_launch();
    uint4 now = load_state(state);
    const uint32_t turn = now.x;
    while ((turn % 2 == 0 ? now.z : now.w) != turn + 1) {
        __nanosleep(100);
        now = load_state(state);
    }
    const uint8_t* slot = slots + (turn % 2) * kFetchSlotBytes;
    const auto* units = reinterpret_cast<const uint4*>(slot + kFetchHeaderBytes);
    uint32_t u = blockIdx.x * kThreads + threadIdx.x;
    // Whether or not it is a unit of this step: its load then runs beside the header's.
    uint4 value = __ldcg(units + min(u, static_cast<uint32_t>((kFetchSlotBytes - kFetchHeaderBytes) / 16 - 1)));
    constexpr uint32_t kHeaderUnits = sizeof(FetchHeader) / 16;
    if (threadIdx.x < kHeaderUnits) {
        reinterpret_cast<uint4*>(&header)[threadIdx.x] = __ldcg(reinterpret_cast<const uint4*>(slot) + threadIdx.x);
    }
    __syncthreads();
    for (bool is_loaded = true; u < header.num_units; u += gridDim.x * kThreads, is_loaded = false) {
        if (!is_loaded) value = __ldcg(units + u);
        uint32_t p = 0;
        while (p + 1 < header.num_pieces && u >= header.pieces[p + 1].first_unit) ++p;
        const uint32_t at = (u - header.pieces[p].first_unit) * 16, bytes = header.pieces[p].bytes;
        uint8_t* dst = header.pieces[p].dst + at;
        if (at + 16 <= bytes && reinterpret_cast<uintptr_t>(dst) % 16 == 0) {
            *reinterpret_cast<uint4*>(dst) = value;
        } else {
            const uint32_t words[4] = {value.x, value.y, value.z, value.w};
            const uint32_t count = min(16u, bytes - at);
#pragma unroll
            for (uint32_t i = 0; i < 16; ++i) {
                if (i < count) dst[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&state->arrived, 1u) == gridDim.x - 1) {
        state->arrived = 0;
        state->turn = turn + 1;
    }
}

__global__ void stamp_kernel(uint64_t* base, const int32_t* index, uint64_t stride) {
    wait_for_predecessors();
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

Status run_pack(cudaStream_t stream, const CopyPieces& all, void* state, uint8_t* slots, uint32_t number) {
    FetchHeader header = {};
    header.num_pieces = static_cast<uint32_t>(all.num_pieces);
    uint64_t largest = 1;
    for (int i = 0; i < all.num_pieces; ++i) {
        header.pieces[i] = {all.pieces[i].dst, header.num_units, static_cast<uint32_t>(all.pieces[i].bytes)};
        header.num_units += static_cast<uint32_t>((all.pieces[i].bytes + 15) / 16);
        largest = std::max(largest, all.pieces[i].bytes);
    }
    const dim3 grid(static_cast<unsigned>((largest + kBlockBytes - 1) / kBlockBytes),
                    static_cast<unsigned>(std::max(all.num_pieces, 1)));
    return launch_kernel(stream, grid, dim3(kThreads), 0, Edge::full, pack_kernel, all, header, static_cast<FetchState*>(state),
                         slots, number);
}

Status run_fetch(cudaStream_t stream, void* state, const uint8_t* slots) {
    // 256 KiB at a time: twice what a step of 256 sequences with contexts of 1,024 brings along.
    constexpr unsigned kFetchBlocks = 64;
    return launch_kernel(stream, dim3(kFetchBlocks), dim3(kThreads), 0, Edge::full, fetch_kernel, static_cast<FetchState*>(state),
                         slots);
}

Status run_stamp(cudaStream_t stream, uint64_t* base, const int32_t* index, size_t stride) {
    return launch_kernel(stream, dim3(1), dim3(1), 0, Edge::programmatic, stamp_kernel, base, index,
                         static_cast<uint64_t>(stride));
}

Status check_kernel_image() {
    cudaFuncAttributes attributes = {};
    const Status s = status_of(cudaFuncGetAttributes(&attributes, stamp_kernel));
    if (!s.ok()) cudaGetLastError();
    return s;
}

int code_architecture() {
    cudaFuncAttributes attributes = {};
    if (cudaFuncGetAttributes(&attributes, stamp_kernel) == cudaSuccess) return attributes.ptxVersion;
    cudaGetLastError();
    return 0;
}

}   // namespace takt::cuda
