// Peaks by loops of independent instructions; bandwidth by summing a buffer that all threads share.
#include "cpu_peaks.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace takt::bench {
namespace {

#define TAKT_TARGET_512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define TAKT_TARGET_256 __attribute__((target("avx2,fma")))

constexpr int kChains = 12;
constexpr int kTurns = 2'000'000;

// The asm keeps each chain in a register and each instruction in the loop.
TAKT_TARGET_512 void spin_dpbusd() {
    __m512i a[kChains] = {};
    const __m512i x = _mm512_set1_epi8(1);
    for (int i = 0; i < kTurns; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < kChains; ++c) asm volatile("vpdpbusd %1, %1, %0" : "+v"(a[c]) : "v"(x));
    }
}
TAKT_TARGET_512 void spin_dpwssd() {
    __m512i a[kChains] = {};
    const __m512i x = _mm512_set1_epi8(1);
    for (int i = 0; i < kTurns; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < kChains; ++c) asm volatile("vpdpwssd %1, %1, %0" : "+v"(a[c]) : "v"(x));
    }
}
TAKT_TARGET_512 void spin_fma512() {
    __m512 a[kChains] = {};
    const __m512 x = _mm512_set1_ps(0.5f);
    for (int i = 0; i < kTurns; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < kChains; ++c) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(a[c]) : "v"(x));
    }
}
TAKT_TARGET_256 void spin_fma256() {
    __m256 a[kChains] = {};
    const __m256 x = _mm256_set1_ps(0.5f);
    for (int i = 0; i < kTurns; ++i) {
#pragma GCC unroll 12
        for (int c = 0; c < kChains; ++c) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(a[c]) : "x"(x));
    }
}

TAKT_TARGET_256 void read_slice(const char* p, std::size_t bytes) {
    __m256i sum[4] = {};
    for (std::size_t i = 0; i + 128 <= bytes; i += 128) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            const char* at = p + i + static_cast<std::size_t>(c) * 32;
            sum[c] = _mm256_add_epi64(sum[c], _mm256_load_si256(reinterpret_cast<const __m256i*>(at)));
        }
    }
    asm volatile("" : : "x"(sum[0]), "x"(sum[1]), "x"(sum[2]), "x"(sum[3]));
}

/// Best of `repeats`: ns in which all threads have done body(thread).
double best_ns(const Clock& clock, int threads, int repeats, const std::function<void(int)>& body) {
    double best = 1e18;
    for (int i = 0; i < repeats; ++i) {
        std::atomic<int> ready{0};
        std::vector<uint64_t> begins(static_cast<std::size_t>(threads)), ends(begins);
        std::vector<std::thread> team;
        for (int t = 0; t < threads; ++t) {
            team.emplace_back([&, t] {
                ready.fetch_add(1);
                while (ready.load() < threads) std::this_thread::yield();
                begins[static_cast<std::size_t>(t)] = clock.now_ns();
                body(t);
                ends[static_cast<std::size_t>(t)] = clock.now_ns();
            });
        }
        for (std::thread& t : team) t.join();
        const auto begin = *std::min_element(begins.begin(), begins.end());
        const auto end = *std::max_element(ends.begin(), ends.end());
        best = std::min(best, static_cast<double>(end - begin));
    }
    return best;
}

}  // namespace

Peaks measure_peaks(const Clock& clock, int threads, std::size_t bytes) {
    Peaks p;
    __builtin_cpu_init();
    const double turns = static_cast<double>(kTurns) * kChains * threads;
    if (__builtin_cpu_supports("avx512vnni")) {
        p.dpbusd_gop_s = 128 * turns / best_ns(clock, threads, 3, [](int) { spin_dpbusd(); });
        p.dpwssd_gop_s = 64 * turns / best_ns(clock, threads, 3, [](int) { spin_dpwssd(); });
        p.fma_gop_s = 32 * turns / best_ns(clock, threads, 3, [](int) { spin_fma512(); });
    } else if (__builtin_cpu_supports("avx2")) {
        p.fma_gop_s = 16 * turns / best_ns(clock, threads, 3, [](int) { spin_fma256(); });
    }
    if (__builtin_cpu_supports("avx2")) {
        // On huge pages, as the device keeps its weights.
        constexpr std::size_t kHugePage = std::size_t{2} << 20;
        const std::size_t share = bytes / static_cast<std::size_t>(threads) / 128 * 128;
        const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
        char* begin = static_cast<char*>(std::aligned_alloc(kHugePage, rounded));
        if (begin == nullptr) return p;
        madvise(begin, rounded, MADV_HUGEPAGE);
        std::memset(begin, 1, rounded);
        const double ns = best_ns(clock, threads, 9, [&](int t) { read_slice(begin + share * static_cast<std::size_t>(t), share); });
        p.read_gb_s = static_cast<double>(share) * threads / ns;
        std::free(begin);
    }
    return p;
}

}  // namespace takt::bench
