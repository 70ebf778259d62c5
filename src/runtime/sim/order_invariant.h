// OrderInvariant: of two prompts of one class and tenant, equal in size and both unbegun or equally far, the one with the earlier
// deadline is let in and served first (scheduling.md section 5, number 14). Held against every plan; only pairs are judged whose order
// nothing else can turn round. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/cost_model.h"
#include "runtime/scheduler.h"

namespace takt::sim {

class OrderInvariant {
public:
    explicit OrderInvariant(const SchedulerConfig& config) : config_(config) {}

    /// `cached`: what the prefix cache held of it then.
    void accepted(const SchedulerRequest& request, int32_t cached);
    void left(RequestId id) { prompts_.erase(id); }
    /// It stopped or went on reading, or lost its blocks: its place in the order is its own affair now.
    void disturbed(RequestId id) { prompts_.erase(id); }
    void planned(const StepPlan& plan, uint64_t start_ns, const CostModel& cost);

    [[nodiscard]] const std::string& wrong() const { return wrong_; }

private:
    struct Prompt {
        int32_t class_index = 0, tenant_index = 0;
        int32_t size = 0, cached = 0;
        int32_t computed = 0;          // rows planned so far, the cached part included
        uint64_t key_ns = 0, itl_ns = 0, arrival_ns = 0;
        bool is_single = false;        // one token only: it never decodes
        bool is_in = false;
        int32_t rows = 0;              // in the plan at hand
    };
    [[nodiscard]] bool must_precede(const Prompt& a, const Prompt& b, uint64_t start_ns, const CostModel& cost) const;
    void judge(RequestId later, bool was_admitted, int32_t floor, uint64_t start_ns, const CostModel& cost);

    const SchedulerConfig& config_;
    std::unordered_map<RequestId, Prompt> prompts_;   // that are not sampled yet
    std::string wrong_;
};

}  // namespace takt::sim
