// Device memory for GPU checks and benches: arrays that start poisoned, random contents, comparison with float64 truth.
// Host code for one thread; every CUDA call is checked, a failure ends the program with a sentence.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/status.h"

namespace takt::check {

inline void require(cudaError_t e, const char* what) {
    if (e == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    std::exit(3);
}
inline void require(const Status& s, const char* what) {
    if (s.ok()) return;
    std::fprintf(stderr, "%s: %s (%d)\n", what, s.message, s.code);
    std::exit(3);
}

template <class T>
class DeviceArray {
public:
    explicit DeviceArray(size_t count) : count_(count) {
        require(cudaMalloc(&data_, std::max<size_t>(count, 1) * sizeof(T)), "allocating");
        poison();
    }
    explicit DeviceArray(const std::vector<T>& v) : DeviceArray(v.size()) { set(v); }
    ~DeviceArray() { cudaFree(data_); }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;

    /// NaN in every float type. Done when it returns: no stream of a check waits for the default stream.
    void poison() {
        require(cudaMemset(data_, 0xff, count_ * sizeof(T)), "poisoning");
        require(cudaDeviceSynchronize(), "poisoning");
    }
    void set(const std::vector<T>& v) {
        require(cudaMemcpy(data_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), "copying in");
    }
    [[nodiscard]] std::vector<T> get() const {
        std::vector<T> v(count_);
        require(cudaMemcpy(v.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "copying out");
        return v;
    }
    [[nodiscard]] T* data() const { return data_; }
    [[nodiscard]] size_t size() const { return count_; }

private:
    T* data_ = nullptr;
    size_t count_;
};

inline double value_of(float v) { return v; }
inline double value_of(__nv_bfloat16 v) { return static_cast<double>(__bfloat162float(v)); }
inline double value_of(__half v) { return static_cast<double>(__half2float(v)); }
template <class T>
T element_of(float v);
template <>
inline float element_of<float>(float v) {
    return v;
}
template <>
inline __nv_bfloat16 element_of<__nv_bfloat16>(float v) {
    return __float2bfloat16(v);
}
template <>
inline __half element_of<__half>(float v) {
    return __float2half(v);
}

template <class T>
std::vector<T> random_values(std::mt19937_64& random, size_t count, float sigma, float mean = 0.0f) {
    std::normal_distribution<float> normal(mean, sigma);
    std::vector<T> v(count);
    for (T& x : v) x = element_of<T>(normal(random));
    return v;
}

/// Collects |out - ref| and |ref|; not-a-number never passes.
class Comparison {
public:
    void add(double out, double reference) {
        difference_ += (out - reference) * (out - reference);
        norm_ += reference * reference;
        if (!(std::fabs(out - reference) <= 1e30)) broken_ = true;
        ++count_;
    }
    [[nodiscard]] double error() const {
        return broken_ || count_ == 0 ? INFINITY : std::sqrt(difference_ / std::max(norm_, 1e-300));
    }

private:
    double difference_ = 0, norm_ = 0;
    int64_t count_ = 0;
    bool broken_ = false;
};

/// Counts checks and writes one JSON line each.
class Report {
public:
    explicit Report(const char* path) : file_(std::fopen(path, "w")) {}
    ~Report() {
        if (file_ != nullptr) std::fclose(file_);
    }
    Report(const Report&) = delete;
    Report& operator=(const Report&) = delete;

    void add(const std::string& name, double error, double bound) {
        const bool passed = error <= bound;
        ++(passed ? passed_ : failed_);
        if (!passed) std::printf("FAIL %-60s error %.3e bound %.1e\n", name.c_str(), error, bound);
        if (file_ != nullptr) {
            std::fprintf(file_, "{\"check\":\"%s\",\"error\":%.4e,\"bound\":%.1e,\"passed\":%s}\n", name.c_str(),
                         std::isfinite(error) ? error : 1e30, bound, passed ? "true" : "false");
            std::fflush(file_);
        }
    }
    [[nodiscard]] int passed() const { return passed_; }
    [[nodiscard]] int failed() const { return failed_; }

private:
    std::FILE* file_;
    int passed_ = 0, failed_ = 0;
};

}   // namespace takt::check
