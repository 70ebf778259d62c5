// Thin names for the PTX instructions that takt's kernels use: mbarriers, tensor copies, asynchronous copies, ldmatrix,
// mma and programmatic dependent launch. Device code only; knows nothing of models.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace takt::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// The first lane's value, which the compiler then knows to be the same in the whole warp: what depends on it alone stays in uniform
/// registers (matrix descriptors must lie there).
__device__ __forceinline__ int warp_uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); }

// Programmatic dependent launch. Every kernel of a step waits in each block before it touches what an earlier kernel
// wrote; only weights and the step input may be read before.
__device__ __forceinline__ void dependents_may_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// For a block without work: some microseconds, so that it leaves its place only when the next kernel's blocks have theirs.
/// Two of them would otherwise take the empty multiprocessor.
__device__ __forceinline__ void linger(unsigned int nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("nanosleep.u32 200;");
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
}

// Barriers in shared memory, tensor copies and clusters came with compute capability 9.0. Kernels that use them are compiled for older
// cards too, where they do nothing and are not launched (has_tensor_copies()).
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TAKT_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define TAKT_CLUSTER(blocks)
#endif

__device__ __forceinline__ void barrier_init(uint64_t* bar, uint32_t count) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
#endif
}
__device__ __forceinline__ void barrier_fence_init() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void barrier_expect(uint64_t* bar, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(uint64_t* bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
#endif
}
__device__ __forceinline__ void barrier_wait(uint64_t* bar, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred done;\n\t"
        "TAKT_WAIT:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@done bra TAKT_DONE;\n\tbra TAKT_WAIT;\n\tTAKT_DONE:\n\t}" ::"r"(shared_address(bar)),
        "r"(parity)
        : "memory");
#endif
}

constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
constexpr uint64_t kEvictLast = 0x14F0000000000000ull;

/// Tensor copies global -> shared; completion counts bytes on `bar`.
__device__ __forceinline__ void tensor_load_4d(void* dst, const void* map, uint64_t* bar, int c0, int c1, int c2, int c3) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(dst)),
        "l"(map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
#endif
}
__device__ __forceinline__ void tensor_load_3d(void* dst, const void* map, uint64_t* bar, int c0, int c1, int c2,
                                               uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(dst)),
        "l"(map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
        : "memory");
#endif
}

__device__ __forceinline__ void tensor_load_5d(void* dst, const void* map, uint64_t* bar, int c0, int c1, int c2, int c3, int c4,
                                               uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared_address(dst)),
        "l"(map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
        : "memory");
#endif
}

/// The same to the same places of both blocks of a pair: each block's barrier counts the bytes that arrive there.
__device__ __forceinline__ void tensor_load_3d_to_pair(void* dst, const void* map, uint64_t* bar, int c0, int c1, int c2,
                                                       uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(shared_address(dst)),
        "l"(map), "r"(shared_address(bar)), "r"(c0), "r"(c1), "r"(c2), "h"(static_cast<uint16_t>(3)), "l"(policy)
        : "memory");
#endif
}

// Clusters: blocks that see each other's shared memory. None may touch another's before it has started, or end while another may
// still touch its own.
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}
/// All threads of all blocks of the cluster meet. Makes no writes visible but those of barrier_fence_init before it.
__device__ __forceinline__ void cluster_meet() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ uint32_t cluster_size() {
    uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
    return size;
}
/// The same in two steps: what was written to shared memory before the first is seen by all blocks of the cluster after the second.
__device__ __forceinline__ void cluster_release() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_acquire() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
/// 16 bytes from the same place of shared memory in block `rank` of the cluster.
__device__ __forceinline__ float4 load_from_block(uint32_t address, uint32_t rank) {
    float4 v = make_float4(0, 0, 0, 0);
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %4, %5;\n\t"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n\t}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address), "r"(rank)
                 : "memory");
#endif
    return v;
}
/// Arrives at the barrier that lies at the same place in block `rank` of the cluster. Tells that this warp has read what lies there;
/// releases no writes to the other block (that took a fence over the whole device, and a third of a product's time).
__device__ __forceinline__ void barrier_arrive_at(uint64_t* bar, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(shared_address(bar)),
                 "r"(rank)
                 : "memory");
#endif
}

/// 16 bytes global -> shared; `bytes` 0 writes zeros and reads nothing.
__device__ __forceinline__ void copy_async_16(void* dst, const void* src, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(dst)), "l"(src), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void load_matrix_x4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/// d += a b for one 16x8x16 tile; T is the element type of a and b.
template <class T>
__device__ __forceinline__ void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma_16816<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                         uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_16816<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two floats to two packed elements, the first in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float lo, float hi);
template <>
__device__ __forceinline__ uint32_t pack_pair<__nv_bfloat16>(float lo, float hi) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *reinterpret_cast<const uint32_t*>(&v);
}
template <>
__device__ __forceinline__ uint32_t pack_pair<__half>(float lo, float hi) {
    const __half2 v = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<const uint32_t*>(&v);
}
template <class T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
    return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float v) {
    return __float2half_rn(v);
}
template <>
__device__ __forceinline__ float from_float<float>(float v) {
    return v;
}

/// The line of `p` into L2.
__device__ __forceinline__ void prefetch_global(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/// Adds in L2 without waiting for the result.
__device__ __forceinline__ void add_global(float* p, float v) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}

/// Bulk copies of the calling thread from shared to global memory, added there as float32 in L2: a multiple of 16 bytes at 16-byte
/// places. Shared memory must be fenced for the asynchronous proxy before.
__device__ __forceinline__ void bulk_add(float* dst, const void* src, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst),
                 "r"(shared_address(src)), "r"(bytes)
                 : "memory");
#endif
}
__device__ __forceinline__ void bulk_commit() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/// Until at most kPending groups of this thread still read shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
#endif
}
/// Until all groups of this thread are done.
__device__ __forceinline__ void bulk_wait_all() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

/// A barrier over `threads` threads of the block; id 1..15 (0 is __syncthreads).
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts this warp's threads at such a barrier without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// 2^x to the accuracy of the special function unit; 0 for minus infinity.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

}   // namespace takt::cuda
