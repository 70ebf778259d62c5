// Large matrix products through cuBLASLt, which is loaded on first use and never linked. Plans are chosen once a shape
// and kept; a product with a known plan only enqueues, so it may be captured. Host code, engine thread.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "kernels/status.h"

namespace takt::cuda {

class LtGemm {
public:
    LtGemm();
    ~LtGemm();
    LtGemm(const LtGemm&) = delete;
    LtGemm& operator=(const LtGemm&) = delete;

    /// Whether the library could be loaded; loads it at the first call.
    [[nodiscard]] bool available();
    struct Product {
        const void* x = nullptr;   // [rows][in], bf16, x_stride elements a row
        int64_t x_stride = 0;
        const void* weight = nullptr;   // [out][in], bf16
        int64_t weight_stride = 0;
        void* y = nullptr;   // [rows][out], float32 or bf16
        int64_t y_stride = 0;
        int64_t rows = 0, out = 0, in = 0;
        bool y_is_float = false;
        bool add = false;   ///< y += instead of y =
    };
    Status run(cudaStream_t stream, const Product& product);
    /// From now on `run` times up to this many candidates of a shape that it meets first, inside a capture on a stream of
    /// its own: the capture must be a relaxed one and nothing else may use the product's memory then. 0: takes the library's.
    /// `captures_only`: never outside one, where the timed runs would add to what the step is computing.
    void tune_new_shapes(int candidates, bool captures_only = false) {
        candidates_ = candidates;
        captures_only_ = captures_only;
    }
    /// Times the library's candidates for this shape on `stream` and keeps the fastest. Synchronises: at start only.
    Status tune(cudaStream_t stream, const Product& product, int candidates);

private:
    struct Library;
    struct Plan;
    using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool>;
    Result<Plan*> plan_for(const Product& product);
    cudaStream_t tuning_stream();
    Status execute(cudaStream_t stream, const Product& product, const Plan& plan);

    std::unique_ptr<Library> library_;
    bool tried_ = false;
    int candidates_ = 0;
    bool captures_only_ = false;
    std::map<Key, std::unique_ptr<Plan>> plans_;
    void* workspace_ = nullptr;
    cudaStream_t tuning_stream_ = nullptr;
};

}   // namespace takt::cuda
