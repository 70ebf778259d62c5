// CudaGraph: an instantiated CUDA graph and the allocations that it names. Engine thread only.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "kernels/allocations.h"
#include "kernels/cuda/input_fetch.h"
#include "kernels/device.h"

namespace takt::cuda {

class CudaGraph final : public Graph {
public:
    /// `fetch`: whose node is the first of the graph; null: none is.
    explicit CudaGraph(std::shared_ptr<InputFetch> fetch) : fetch_(std::move(fetch)) {}
    ~CudaGraph() override {
        if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    }
    CudaGraph(const CudaGraph&) = delete;
    CudaGraph& operator=(const CudaGraph&) = delete;

    [[nodiscard]] int num_operations() const override { return num_nodes_; }
    [[nodiscard]] size_t device_bytes() const override { return device_bytes_; }
    [[nodiscard]] CapturedMemory& memory() { return memory_; }
    [[nodiscard]] cudaGraphExec_t exec() const { return exec_; }
    [[nodiscard]] InputFetch* fetch() const { return fetch_.get(); }

    /// Instantiates `graph` and brings it to the device by `stream`, so that its first launch costs what every one does.
    cudaError_t instantiate(cudaGraph_t graph, cudaStream_t stream) {
        size_t nodes = 0, free_before = 0, free_after = 0, total = 0;
        cudaError_t e = cudaGraphGetNodes(graph, nullptr, &nodes);
        if (e == cudaSuccess) e = cudaMemGetInfo(&free_before, &total);
        if (e == cudaSuccess) e = cudaGraphInstantiate(&exec_, graph, 0);
        if (e == cudaSuccess) e = cudaGraphUpload(exec_, stream);
        if (e == cudaSuccess) e = cudaMemGetInfo(&free_after, &total);
        num_nodes_ = static_cast<int>(nodes) - (fetch_ != nullptr ? 1 : 0);
        device_bytes_ = free_before > free_after ? free_before - free_after : 0;
        return e;
    }

private:
    cudaGraphExec_t exec_ = nullptr;
    int num_nodes_ = 0;
    size_t device_bytes_ = 0;   // by the device's books: pages that several small graphs share count for the first
    CapturedMemory memory_;
    std::shared_ptr<InputFetch> fetch_;
};

}   // namespace takt::cuda
