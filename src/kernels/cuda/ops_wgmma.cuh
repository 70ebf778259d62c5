// Thin names for Hopper's warpgroup matrix instructions (sm_90a): descriptors of operands in shared memory, products of 64
// rows over bf16 and f16 with float32 sums, fences and waits. Device code only. An accumulator's element [j][c] is the
// one that mma.m16n8k16 would give this thread for columns 8 j .. 8 j + 7.
#pragma once

#include "kernels/cuda/ops_ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TAKT_HAS_WGMMA 1
#endif

namespace takt::cuda {

/// An operand in shared memory with 128-byte swizzle; `address` lies in an atom of 8 x 128 bytes that is aligned to 1,024.
/// K-major: `stride` leads from eight rows to the next eight (`leading` is not read). MN-major: `leading` leads from 64
/// columns to the next 64, `stride` from eight of K to the next eight. Bytes.
__device__ __forceinline__ uint64_t operand_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
    return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62;
}

/// The same operand `bytes` (a multiple of 16) further on.
__device__ __forceinline__ uint64_t advanced(uint64_t descriptor, int bytes) { return descriptor + static_cast<uint64_t>(bytes >> 4); }

__device__ __forceinline__ void wgmma_fence() {
#ifdef TAKT_HAS_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit() {
#ifdef TAKT_HAS_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
#ifdef TAKT_HAS_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
/// Makes ordinary writes to shared memory visible to the tensor cores and to bulk copies.
__device__ __forceinline__ void shared_proxy_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// Keeps the compiler from moving uses of accumulators over a wait.
template <int kTiles>
__device__ __forceinline__ void pin(float (&d)[kTiles][4]) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) asm volatile("" : "+f"(d[i][c])::"memory");
    }
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#ifdef TAKT_HAS_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
#ifdef TAKT_HAS_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// clang-format off
#define TAKT_TILE(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define TAKT_TILES_4(i) TAKT_TILE(i), TAKT_TILE(i + 1), TAKT_TILE(i + 2), TAKT_TILE(i + 3)
#define TAKT_TILES_2 TAKT_TILE(0), TAKT_TILE(1)
#define TAKT_REGISTERS_8 "{%0, %1, %2, %3, %4, %5, %6, %7"
#define TAKT_TILES_8 TAKT_TILE(0), TAKT_TILE(1), TAKT_TILE(2), TAKT_TILE(3), TAKT_TILE(4), TAKT_TILE(5), TAKT_TILE(6), TAKT_TILE(7)
#define TAKT_TILES_16 TAKT_TILES_8, TAKT_TILE(8), TAKT_TILE(9), TAKT_TILE(10), TAKT_TILE(11), TAKT_TILE(12), TAKT_TILE(13), \
    TAKT_TILE(14), TAKT_TILE(15)
#define TAKT_REGISTERS_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TAKT_REGISTERS_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TAKT_REGISTERS_64 TAKT_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// Operands: the sums' registers, then both descriptors and the flag at the places `da`, `db` and `flag`.
#define TAKT_WGMMA_SHARED(type, n, registers, tiles, da, db, flag) \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" flag ", 0;\n\twgmma.mma_async.sync.aligned.m64n" n "k16.f32." type " " \
        registers "}, %" da ", %" db ", p, 1, 1, 0, 0;\n\t}\n" \
        : tiles : "l"(a), "l"(b), "r"(accumulate) : "memory")
#define TAKT_WGMMA_SHARED_128(type) TAKT_WGMMA_SHARED(type, "128", TAKT_REGISTERS_64, TAKT_TILES_16, "64", "65", "66")
#define TAKT_WGMMA_128(type) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type " " \
        TAKT_REGISTERS_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n" \
        : TAKT_TILES_16 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory")
#define TAKT_WGMMA_64(type) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type " " \
        TAKT_REGISTERS_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n" \
        : TAKT_TILES_8 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b) : "memory")
// clang-format on

/// d (64 x 128) = a b, or += where `accumulate` is 1; both operands K-major in shared memory.
template <class T>
__device__ __forceinline__ void wgmma_shared(float (&d)[16][4], uint64_t a, uint64_t b, int accumulate) {
#ifdef TAKT_HAS_WGMMA
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        TAKT_WGMMA_SHARED_128("bf16.bf16");
    } else {
        TAKT_WGMMA_SHARED_128("f16.f16");
    }
#endif
}
/// The same over bf16 for 16, 32 and 64 columns.
__device__ __forceinline__ void wgmma_shared_bf16(float (&d)[2][4], uint64_t a, uint64_t b, int accumulate) {
#ifdef TAKT_HAS_WGMMA
    TAKT_WGMMA_SHARED("bf16.bf16", "16", TAKT_REGISTERS_8, TAKT_TILES_2, "8", "9", "10");
#endif
}
__device__ __forceinline__ void wgmma_shared_bf16(float (&d)[4][4], uint64_t a, uint64_t b, int accumulate) {
#ifdef TAKT_HAS_WGMMA
    TAKT_WGMMA_SHARED("bf16.bf16", "32", TAKT_REGISTERS_16, TAKT_TILES_4(0), "16", "17", "18");
#endif
}
__device__ __forceinline__ void wgmma_shared_bf16(float (&d)[8][4], uint64_t a, uint64_t b, int accumulate) {
#ifdef TAKT_HAS_WGMMA
    TAKT_WGMMA_SHARED("bf16.bf16", "64", TAKT_REGISTERS_32, TAKT_TILES_8, "32", "33", "34");
#endif
}
/// d (64 x 128) += a b; a in registers as for mma.m16n8k16, b MN-major in shared memory.
template <class T>
__device__ __forceinline__ void wgmma_registers(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
#ifdef TAKT_HAS_WGMMA
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        TAKT_WGMMA_128("bf16.bf16");
    } else {
        TAKT_WGMMA_128("f16.f16");
    }
#endif
}
/// The same for 64 columns.
template <class T>
__device__ __forceinline__ void wgmma_registers(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
#ifdef TAKT_HAS_WGMMA
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        TAKT_WGMMA_64("bf16.bf16");
    } else {
        TAKT_WGMMA_64("f16.f16");
    }
#endif
}

#undef TAKT_TILE
#undef TAKT_TILES_2
#undef TAKT_TILES_4
#undef TAKT_TILES_8
#undef TAKT_TILES_16
#undef TAKT_REGISTERS_8
#undef TAKT_REGISTERS_16
#undef TAKT_REGISTERS_32
#undef TAKT_REGISTERS_64
#undef TAKT_WGMMA_SHARED
#undef TAKT_WGMMA_SHARED_128
#undef TAKT_WGMMA_128
#undef TAKT_WGMMA_64

}   // namespace takt::cuda
