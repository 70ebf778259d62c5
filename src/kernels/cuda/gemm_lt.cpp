// Loads cuBLASLt by name, keeps one plan a shape. Column-major library: y^T = weight x^T, so the library's m is our
// out.
#include "kernels/cuda/gemm_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kMaxCandidates = 16;
constexpr int kTuneTurns = 3, kTuneTurnsOfShort = 9;   // of products that take less than kShortMs, where chance is larger
constexpr float kShortMs = 0.2f;
constexpr float kNeverMs = 1e9f;

/// Milliseconds of a stream's work between two calls.
class Stopwatch {
public:
    Stopwatch() {
        cudaEventCreate(&begin_);
        cudaEventCreate(&end_);
    }
    ~Stopwatch() {
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
    }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    void begin(cudaStream_t stream) { cudaEventRecord(begin_, stream); }
    float end(cudaStream_t stream) {
        float ms = kNeverMs;
        cudaEventRecord(end_, stream);
        cudaEventSynchronize(end_);
        return cudaEventElapsedTime(&ms, begin_, end_) == cudaSuccess ? ms : kNeverMs;
    }

private:
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

Status lt_status(cublasStatus_t s) {
    return s == CUBLAS_STATUS_SUCCESS ? Status{}
                                      : Status{static_cast<int32_t>(s) + 20000, "CUDA: cuBLASLt refused a product"};
}

}   // namespace

struct LtGemm::Library {
    void* handle = nullptr;
    cublasLtHandle_t lt = nullptr;
    decltype(&cublasLtCreate) create = nullptr;
    decltype(&cublasLtDestroy) destroy = nullptr;
    decltype(&cublasLtMatmul) matmul = nullptr;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
    decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
    decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;

    template <class F>
    bool find(F& f, const char* name) {
        f = reinterpret_cast<F>(dlsym(handle, name));
        return f != nullptr;
    }
    bool load() {
        for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
            if (handle == nullptr) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        }
        return handle != nullptr && find(create, "cublasLtCreate") && find(destroy, "cublasLtDestroy") &&
               find(matmul, "cublasLtMatmul") && find(heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
               find(desc_create, "cublasLtMatmulDescCreate") && find(desc_destroy, "cublasLtMatmulDescDestroy") &&
               find(desc_set, "cublasLtMatmulDescSetAttribute") && find(layout_create, "cublasLtMatrixLayoutCreate") &&
               find(layout_destroy, "cublasLtMatrixLayoutDestroy") &&
               find(preference_create, "cublasLtMatmulPreferenceCreate") &&
               find(preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
               find(preference_set, "cublasLtMatmulPreferenceSetAttribute") && create(&lt) == CUBLAS_STATUS_SUCCESS;
    }
    ~Library() {
        if (lt != nullptr) destroy(lt);
    }
};

struct LtGemm::Plan {
    Library* library = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    std::vector<cublasLtMatmulHeuristicResult_t> candidates;
    int chosen = 0;
    bool tuned = false;
    ~Plan() {
        if (desc != nullptr) library->desc_destroy(desc);
        if (a != nullptr) library->layout_destroy(a);
        if (b != nullptr) library->layout_destroy(b);
        if (c != nullptr) library->layout_destroy(c);
    }
};

LtGemm::LtGemm() = default;

cudaStream_t LtGemm::tuning_stream() {
    if (tuning_stream_ == nullptr) cudaStreamCreateWithFlags(&tuning_stream_, cudaStreamNonBlocking);
    return tuning_stream_;
}

LtGemm::~LtGemm() {
    if (tuning_stream_ != nullptr) cudaStreamDestroy(tuning_stream_);
    plans_.clear();
    cudaFree(workspace_);
}

bool LtGemm::available() {
    if (tried_) return library_ != nullptr;
    tried_ = true;
    auto library = std::make_unique<Library>();
    if (!library->load() || cudaMalloc(&workspace_, kWorkspaceBytes) != cudaSuccess) return false;
    library_ = std::move(library);
    return true;
}

Result<LtGemm::Plan*> LtGemm::plan_for(const Product& p) {
    const Key key{p.rows, p.out, p.in, p.x_stride, p.weight_stride, p.y_stride, p.y_is_float, p.add};
    if (const auto it = plans_.find(key); it != plans_.end()) return it->second.get();
    if (!available()) return Error{"CUDA: libcublasLt could not be loaded"};
    auto plan = std::make_unique<Plan>();
    Library& l = *library_;
    plan->library = &l;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cudaDataType_t out_type = p.y_is_float ? CUDA_R_32F : CUDA_R_16BF;
    const auto u = [](int64_t v) { return static_cast<uint64_t>(v); };
    cublasLtMatmulPreference_t preference = nullptr;
    const size_t workspace = kWorkspaceBytes;
    bool ok =
        l.desc_create(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        l.desc_set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)) == CUBLAS_STATUS_SUCCESS &&
        l.layout_create(&plan->a, CUDA_R_16BF, u(p.in), u(p.out), p.weight_stride) == CUBLAS_STATUS_SUCCESS &&
        l.layout_create(&plan->b, CUDA_R_16BF, u(p.in), u(p.rows), p.x_stride) == CUBLAS_STATUS_SUCCESS &&
        l.layout_create(&plan->c, out_type, u(p.out), u(p.rows), p.y_stride) == CUBLAS_STATUS_SUCCESS &&
        l.preference_create(&preference) == CUBLAS_STATUS_SUCCESS &&
        l.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)) ==
            CUBLAS_STATUS_SUCCESS;
    int found = 0;
    plan->candidates.resize(kMaxCandidates);
    ok = ok && l.heuristic(l.lt, plan->desc, plan->a, plan->b, plan->c, plan->c, preference, kMaxCandidates,
                           plan->candidates.data(), &found) == CUBLAS_STATUS_SUCCESS;
    if (preference != nullptr) l.preference_destroy(preference);
    if (!ok || found == 0) return Error{"CUDA: cuBLASLt has no algorithm for a linear layer"};
    plan->candidates.resize(static_cast<size_t>(found));
    return plans_.emplace(key, std::move(plan)).first->second.get();
}

Status LtGemm::execute(cudaStream_t stream, const Product& p, const Plan& plan) {
    const float one = 1.0f, beta = p.add ? 1.0f : 0.0f;
    const auto& chosen = plan.candidates[static_cast<size_t>(plan.chosen)];
    return lt_status(library_->matmul(library_->lt, plan.desc, &one, p.weight, plan.a, p.x, plan.b, &beta, p.y, plan.c,
                                      p.y, plan.c, &chosen.algo, workspace_, kWorkspaceBytes, stream));
}

Status LtGemm::run(cudaStream_t stream, const Product& product) {
    if (product.rows == 0) return {};
    Result<Plan*> plan = plan_for(product);
    if (!plan.ok()) return {kStatusUnsupported, "CUDA: no cuBLASLt plan for a linear layer"};
    if (candidates_ > 0 && !plan.value()->tuned) {
        cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
        cudaStreamIsCapturing(stream, &capturing);
        const bool in_capture = capturing != cudaStreamCaptureStatusNone;
        if (in_capture || !captures_only_) {
            const Status s = tune(in_capture ? tuning_stream() : stream, product, candidates_);
            if (!s.ok()) return s;
        }
    }
    return execute(stream, product, *plan.value());
}

Status LtGemm::tune(cudaStream_t stream, const Product& product, int candidates) {
    Result<Plan*> found = plan_for(product);
    if (!found.ok()) return {kStatusUnsupported, "CUDA: no cuBLASLt plan for a linear layer"};
    Plan& plan = *found.value();
    if (plan.tuned) return {};
    plan.tuned = true;
    const auto count = std::min(static_cast<size_t>(candidates), plan.candidates.size());
    std::vector<std::vector<float>> times(count);
    Stopwatch watch;
    int turns = kTuneTurns;
    for (int turn = 0; turn <= turns; ++turn) {   // in turns, so that a change of the clock meets all; the first is not counted
        for (size_t i = 0; i < count; ++i) {
            plan.chosen = static_cast<int>(i);
            // A step finds its weights in memory, not in the cache, where the last turn left small ones.
            cudaMemsetAsync(workspace_, 0, kWorkspaceBytes, stream);
            watch.begin(stream);
            const bool ran = execute(stream, product, plan).ok();
            const float ms = watch.end(stream);
            if (turn > 0) times[i].push_back(ran ? ms : kNeverMs);
            if (turn == 1 && i == 0 && ms < kShortMs) turns = kTuneTurnsOfShort;
        }
    }
    size_t best = 0;
    const auto middle = static_cast<std::ptrdiff_t>(turns / 2);
    for (size_t i = 0; i < count; ++i) {
        std::nth_element(times[i].begin(), times[i].begin() + middle, times[i].end());
        if (times[i][static_cast<size_t>(middle)] < times[best][static_cast<size_t>(middle)]) best = i;
    }
    plan.chosen = static_cast<int>(best);
    return status_of(cudaGetLastError());
}

}   // namespace takt::cuda
