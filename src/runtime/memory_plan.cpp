// The memory plan: what weights, KV, workspaces and inputs take, and how many KV blocks the rest of the budget holds.
#include <algorithm>
#include <cmath>

#include <takt/engine.h>

#include "runtime/engine_setup.h"

namespace takt {
namespace {

// Below this many blocks not even one full context could ever run.
int64_t smallest_pool(int32_t max_context, int32_t block_tokens) { return (max_context + block_tokens - 1) / block_tokens + 2; }

std::string mib(int64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

/// Asked before the weights are read: all that is free counts.
int64_t budget_of(const Config& config, const Device& device, int64_t free_bytes) {
    if (config.device.memory_budget_mib > 0) return config.device.memory_budget_mib << 20;
    const double otherwise = device.caps().kind == DeviceKind::cpu ? 0.25 : 0.9;
    return static_cast<int64_t>(static_cast<double>(free_bytes) * config.device.memory_fraction.value_or(otherwise));
}

}  // namespace

MemoryPlan make_memory_plan(const Config& config, Device& device, const Model& model, int32_t max_context, RunnerOptions& options) {
    MemoryPlan plan;
    plan.weights = static_cast<int64_t>(model.weight_bytes());
    uint64_t free_bytes = 0, total_bytes = 0;
    device.memory(&free_bytes, &total_bytes);
    plan.free_before = static_cast<int64_t>(free_bytes);
    plan.budget = budget_of(config, device, plan.free_before);
    if (options.graphs) {
        plan.graphs = static_cast<int64_t>(ForwardRunner::shapes(options).size() * device.graph_bytes());
    }
    const StepCapacity capacity = ForwardRunner::capacity_of(device, model, options);
    const KvLayout kv = model.kv_layout(options.kv_type, options.block_tokens, 1);
    plan.workspaces = static_cast<int64_t>(model.workspace_bytes(capacity, kv));
    const int64_t counts = int64_t{3} * options.max_running * model.config().vocab;
    const auto copies = static_cast<size_t>(ForwardRunner::num_inputs(options)) + 1;   // pinned ones and the device's
    plan.inputs = static_cast<int64_t>(copies * StepInputLayout(capacity).bytes() + 2 * step_result_bytes(capacity.max_samples)) + counts;
    plan.block_tokens = options.block_tokens;
    plan.block_bytes = static_cast<int64_t>(kv.block_bytes());

    const int64_t left = plan.budget - plan.total();
    int64_t blocks = left > 0 ? left / plan.block_bytes : 0;
    const int64_t per_context = (max_context + options.block_tokens - 1) / options.block_tokens;
    // More than every slot's full context can never be used; on the CPU 16 full contexts are the rule.
    int64_t most = per_context * options.max_running + 1;
    if (device.caps().kind == DeviceKind::cpu) most = std::min(most, 16 * per_context + 1);
    const int64_t least = smallest_pool(std::min(max_context, 256), options.block_tokens);
    blocks = std::min(blocks, std::max(most, least));   // one slot of a short context fills less than the smallest pool
    plan.num_blocks = blocks;
    plan.kv = blocks * plan.block_bytes;
    plan.fits = blocks >= least;
    if (!plan.fits) {
        plan.note = "the model does not fit: " + mib(plan.weights) + " of weights, " + mib(plan.workspaces + plan.inputs) +
                    " of workspaces and " + mib(least * plan.block_bytes) + " of KV are needed, the budget is " +
                    mib(plan.budget) + " (device.memory_budget_mib, device.memory_fraction)";
    } else if (blocks < per_context) {
        plan.note = "one full context of " + std::to_string(max_context) + " tokens does not fit the KV pool";
    }
    options.num_blocks = static_cast<int32_t>(blocks);
    return plan;
}

MemoryPlan plan_memory(const Config& config) {
    const RealClock clock;
    const Logger log({});
    Config silent = config;
    silent.log = {};
    return plan_model(silent, clock, log)->plan;
}

}  // namespace takt
