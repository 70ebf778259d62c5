// Launches one kernel on a CUDA stream, with or without a programmatic edge to its predecessor. Host code for .cu
// files.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/small_kernels.h"
#include "kernels/status.h"

namespace takt::cuda {

/// Compute capability of the current device, its first part; 0: none answers.
inline int major_capability() {
    static const int found = [] {
        int device = 0, major = 0;
        const bool answers = cudaGetDevice(&device) == cudaSuccess &&
                             cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
        return answers ? major : 0;
    }();
    return found;
}

/// Whether a device of compute capability `major` with so much shared memory a block has tensor copies, clusters, programmatic edges and
/// room for the kernels that use them, and code written for them: `code` is 10 x major + minor of the architecture that it was written
/// for (0: not known), which is older where the driver translates the PTX of another card. Cards of 12.x lack the room.
constexpr bool has_tensor_copies(int major, int shared_bytes, int code) {
    constexpr int kHopperSharedBytes = 227 * 1024;
    return major >= 9 && shared_bytes >= kHopperSharedBytes && (code == 0 || code >= 90);
}

/// The same of the current device and this build.
inline bool has_tensor_copies() {
    static const bool found = [] {
        int device = 0, shared_bytes = 0;
        const bool answers = cudaGetDevice(&device) == cudaSuccess &&
                             cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
        return answers && has_tensor_copies(major_capability(), shared_bytes, code_architecture());
    }();
    return found;
}

/// Whether the current device has Hopper's warpgroup instructions and the build has code with them (TAKT_HAVE_SM_90A).
inline bool has_warpgroups() {
#ifndef TAKT_HAVE_SM_90A
    return false;
#endif
    return major_capability() == 9 && has_tensor_copies();
}

enum class Edge : uint8_t {
    full,           ///< starts when its predecessor has finished
    programmatic,   ///< may start early; the kernel itself waits before it reads what others wrote
};

inline Status status_of(cudaError_t e) {
    return e == cudaSuccess ? Status{} : Status{static_cast<int32_t>(e), cudaGetErrorString(e)};
}

template <class... P, class... A>
Status launch_kernel(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, Edge edge, void (*kernel)(P...),
                     A&&... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = edge == Edge::programmatic && has_tensor_copies() ? 1 : 0;
    return status_of(cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...));
}

/// The same with a programmatic edge, in clusters of blocks.
template <class... P, class... A>
Status launch_clusters(cudaStream_t stream, dim3 grid, dim3 block, dim3 cluster, size_t shared_bytes, void (*kernel)(P...), A&&... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cluster.x, cluster.y, cluster.z};
    config.attrs = attributes;
    config.numAttrs = 2;
    return status_of(cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...));
}

/// Raises a kernel's limit of dynamic shared memory; cheap to repeat.
template <class K>
Status allow_shared(K* kernel, size_t bytes) {
    if (bytes <= 48 * 1024) return {};
    return status_of(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}   // namespace takt::cuda
