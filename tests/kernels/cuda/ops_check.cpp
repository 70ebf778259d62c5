// ops_check OUT.jsonl [GROUP [brief]]: every CUDA operation (or those of one group: input, linear, attention, sample) against
// float64 on the host; brief: small shapes only. Exit 0 all passed, 1 some failed, 77 no device.
#include <cstdio>
#include <string>

#include "checks.h"

int main(int argc, char** argv) {
    using namespace takt;
    check::Report report(argc > 1 ? argv[1] : "/dev/null");
    check::check_plan(report);
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        std::printf("no CUDA device; %d checks without one passed, %d failed\n", report.passed(), report.failed());
        return report.failed() == 0 ? 77 : 1;
    }
    const std::string only = argc > 2 ? argv[2] : "";
    check::Bench bench;
    bench.report = &report;
    bench.brief = argc > 3 && std::string(argv[3]) == "brief";
    check::require(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking), "stream");
    auto fast = cuda::LinearContext::create(0, 2048, false), exact = cuda::LinearContext::create(0, 2048, true);
    if (!fast.ok() || !exact.ok()) {
        std::printf("%s\n", (fast.ok() ? exact : fast).error().c_str());
        return 3;
    }
    bench.context = fast.value();
    bench.deterministic = exact.value();
    if (only.empty() || only == "input") check::check_attention_input(bench);
    if (only.empty() || only == "linear") check::check_linear(bench);
    if (only.empty() || only == "attention") check::check_attention(bench);
    if (only.empty() || only == "sample") check::check_sample(bench);
    std::printf("%d checks passed, %d failed\n", report.passed(), report.failed());
    return report.failed() == 0 ? 0 : 1;
}
