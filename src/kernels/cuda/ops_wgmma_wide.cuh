// The bf16 warpgroup products of 64 rows with 96 to 256 columns (ops_wgmma.cuh has the narrower ones), both operands K-major in
// shared memory. Device code only.
#pragma once

#include "kernels/cuda/ops_wgmma.cuh"

namespace takt::cuda {

// clang-format off
#define TAKT_TILE(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define TAKT_TILES_2(i) TAKT_TILE(i), TAKT_TILE(i + 1)
#define TAKT_TILES_4(i) TAKT_TILES_2(i), TAKT_TILES_2(i + 2)
#define TAKT_TILES_8(i) TAKT_TILES_4(i), TAKT_TILES_4(i + 4)
#define TAKT_TILES_16(i) TAKT_TILES_8(i), TAKT_TILES_8(i + 8)
// The sums' registers by their decimal places.
#define TAKT_TWO(t) ", %" #t "0, %" #t "1"
#define TAKT_FOUR(t) TAKT_TWO(t) ", %" #t "2, %" #t "3"
#define TAKT_SIX(t) TAKT_FOUR(t) ", %" #t "4, %" #t "5"
#define TAKT_EIGHT(t) TAKT_SIX(t) ", %" #t "6, %" #t "7"
#define TAKT_TEN(t) TAKT_EIGHT(t) ", %" #t "8, %" #t "9"
#define TAKT_FORTY "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9" TAKT_TEN(1) TAKT_TEN(2) TAKT_TEN(3)
#define TAKT_FIFTY TAKT_FORTY TAKT_TEN(4)
#define TAKT_EIGHTY TAKT_FIFTY TAKT_TEN(5) TAKT_TEN(6) TAKT_TEN(7)
// Operands: the sums' registers, then both descriptors and the flag at the places `da`, `db` and `flag`.
#define TAKT_WGMMA_WIDE(n, registers, da, db, flag, ...) \
    __device__ __forceinline__ void wgmma_shared_bf16(float (&d)[n / 8][4], uint64_t a, uint64_t b, int accumulate) { \
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" flag ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #n \
            "k16.f32.bf16.bf16 {" registers "}, %" da ", %" db ", p, 1, 1, 0, 0;\n\t}\n" \
            : __VA_ARGS__ : "l"(a), "l"(b), "r"(accumulate) : "memory"); \
    }

#ifdef TAKT_HAS_WGMMA
TAKT_WGMMA_WIDE(96, TAKT_FORTY TAKT_EIGHT(4), "48", "49", "50", TAKT_TILES_8(0), TAKT_TILES_4(8))
TAKT_WGMMA_WIDE(112, TAKT_FIFTY TAKT_SIX(5), "56", "57", "58", TAKT_TILES_8(0), TAKT_TILES_4(8), TAKT_TILES_2(12))
TAKT_WGMMA_WIDE(128, TAKT_FIFTY TAKT_TEN(5) TAKT_FOUR(6), "64", "65", "66", TAKT_TILES_16(0))
TAKT_WGMMA_WIDE(144, TAKT_FIFTY TAKT_TEN(5) TAKT_TEN(6) TAKT_TWO(7), "72", "73", "74", TAKT_TILES_16(0), TAKT_TILES_2(16))
TAKT_WGMMA_WIDE(160, TAKT_EIGHTY, "80", "81", "82", TAKT_TILES_16(0), TAKT_TILES_4(16))
TAKT_WGMMA_WIDE(176, TAKT_EIGHTY TAKT_EIGHT(8), "88", "89", "90", TAKT_TILES_16(0), TAKT_TILES_4(16), TAKT_TILES_2(20))
TAKT_WGMMA_WIDE(192, TAKT_EIGHTY TAKT_TEN(8) TAKT_SIX(9), "96", "97", "98", TAKT_TILES_16(0), TAKT_TILES_8(16))
TAKT_WGMMA_WIDE(224, TAKT_EIGHTY TAKT_TEN(8) TAKT_TEN(9) TAKT_TEN(10) TAKT_TWO(11), "112", "113", "114", TAKT_TILES_16(0),
    TAKT_TILES_8(16), TAKT_TILES_4(24))
TAKT_WGMMA_WIDE(256, TAKT_EIGHTY TAKT_TEN(8) TAKT_TEN(9) TAKT_TEN(10) TAKT_TEN(11) TAKT_EIGHT(12), "128", "129", "130",
    TAKT_TILES_16(0), TAKT_TILES_16(16))
#else
template <int kTiles>
__device__ __forceinline__ void wgmma_shared_bf16(float (&)[kTiles][4], uint64_t, uint64_t, int) {}
#endif
// clang-format on

#undef TAKT_TILE
#undef TAKT_TILES_2
#undef TAKT_TILES_4
#undef TAKT_TILES_8
#undef TAKT_TILES_16
#undef TAKT_TWO
#undef TAKT_FOUR
#undef TAKT_SIX
#undef TAKT_EIGHT
#undef TAKT_TEN
#undef TAKT_FORTY
#undef TAKT_FIFTY
#undef TAKT_EIGHTY
#undef TAKT_WGMMA_WIDE

}   // namespace takt::cuda
