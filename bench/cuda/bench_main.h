// What the GPU benches' main functions share: exit 77 where there is no device, the results' file. Host code.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <memory>

namespace takt::check {

/// Calls run(file) with the file that the first argument names, or none.
template <class Run>
int bench_main(int argc, char** argv, Run run) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        std::printf("no CUDA device\n");
        return 77;
    }
    const auto close = [](std::FILE* f) { std::fclose(f); };
    const std::unique_ptr<std::FILE, decltype(close)> out(std::fopen(argc > 1 ? argv[1] : "/dev/null", "w"), close);
    if (out == nullptr) return 1;
    run(out.get());
    return 0;
}

}   // namespace takt::check
