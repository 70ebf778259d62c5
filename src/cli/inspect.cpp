// `takt inspect`: what a model file holds, and with --plan what running it would take. Reads only the file's index.
#include <takt/engine.h>

#include <cinttypes>
#include <cstdio>

#include "cli/command.h"

namespace takt::cli {

namespace {

std::string mib(std::int64_t bytes) {
    char buffer[40];
    std::snprintf(buffer, sizeof(buffer), "%.1f MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
    return buffer;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string out;
    for (const std::int64_t extent : shape) out += (out.empty() ? "" : " x ") + std::to_string(extent);
    return out;
}

void print_report(const ModelReport& report, bool tensors) {
    std::printf("file          %s\nformat        %s\narchitecture  %s\nname          %s\nparameters    %" PRId64
                "\nsize          %s\ntensors       %zu\n",
                report.path.c_str(), report.format.c_str(), report.architecture.c_str(), report.name.c_str(),
                report.parameters, mib(report.bytes).c_str(), report.tensors.size());
    std::puts("\nmetadata");
    for (const auto& [key, value] : report.metadata) std::printf("  %-44s %s\n", key.c_str(), value.c_str());
    if (!tensors) {
        std::puts("\n(--tensors lists the tensors)");
        return;
    }
    std::puts("\ntensors");
    for (const TensorInfo& tensor : report.tensors) {
        std::printf("  %-44s %-6s %-20s %s\n", tensor.name.c_str(), tensor.type.c_str(), shape_text(tensor.shape).c_str(),
                    mib(tensor.bytes).c_str());
    }
}

void print_plan(const MemoryPlan& plan) {
    std::puts("\nmemory plan");
    const std::pair<const char*, std::int64_t> parts[] = {{"weights", plan.weights},       {"KV", plan.kv},
                                                         {"workspaces", plan.workspaces}, {"graphs", plan.graphs},
                                                         {"inputs", plan.inputs},         {"together", plan.total()},
                                                         {"budget", plan.budget}};
    for (const auto& [name, bytes] : parts) std::printf("  %-12s %14s\n", name, mib(bytes).c_str());
    std::printf("  KV: %" PRId64 " blocks of %" PRId64 " tokens, %" PRId64 " bytes each: %" PRId64 " tokens\n",
                plan.num_blocks, plan.block_tokens, plan.block_bytes, plan.num_blocks * plan.block_tokens);
    if (!plan.note.empty()) std::printf("  note: %s\n", plan.note.c_str());
    std::printf("  %s\n", plan.fits ? "it fits" : "it does not fit");
}

}  // namespace

int inspect_model(const InspectOptions& options) {
    // The configuration first: its errors are usage errors, and come before any work.
    Config config;
    if (options.plan) config = read_config(options.config);
    print_report(inspect(options.config.model), options.tensors);
    if (options.plan) print_plan(plan_memory(config));
    return kDone;
}

}  // namespace takt::cli
