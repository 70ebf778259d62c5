// The groups of GPU checks; each adds its lines to the report.
#pragma once

#include <memory>

#include "device_array.h"
#include "kernels/cuda/linear.h"

namespace takt::check {

struct Bench {
    cudaStream_t stream = nullptr;
    std::shared_ptr<cuda::LinearContext> context;         // fast mode
    std::shared_ptr<cuda::LinearContext> deterministic;   // tile kernel only
    Report* report = nullptr;
    bool brief = false;   // small shapes only, for tools that slow the device down
    std::mt19937_64 random{12345};

    void finish(const char* what) {
        require(cudaStreamSynchronize(stream), what);
        require(cudaGetLastError(), what);
    }
};

void check_plan(Report& report);   // needs no device
void check_attention(Bench& bench);
void check_attention_input(Bench& bench);
void check_linear(Bench& bench);
void check_sample(Bench& bench);

}   // namespace takt::check
