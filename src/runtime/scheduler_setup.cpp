// Scheduler options from the configuration; see scheduler_setup.h.
#include "runtime/scheduler_setup.h"

namespace takt {
namespace {

SchedulerClass class_from(const SlaClass& sla) {
    SchedulerClass c;
    c.name = sla.name;
    c.itl_ns = static_cast<uint64_t>(sla.itl_ms * 1e6);
    c.ttft_ns = static_cast<uint64_t>(sla.ttft_ms * 1e6);
    c.envelope = sla.mode == "envelope";
    c.on_miss = sla.on_miss == "refuse"   ? SchedulerClass::OnMiss::refuse
                : sla.on_miss == "demote" ? SchedulerClass::OnMiss::demote
                                          : SchedulerClass::OnMiss::queue;
    c.weight = sla.weight;
    return c;
}

}  // namespace

SchedulerConfig scheduler_basics(const Config& config, int32_t max_context) {
    SchedulerConfig s;
    s.fixed_chunk = config.scheduler.policy == "fixed-chunk";
    s.fixed_chunk_tokens = config.scheduler.fixed_chunk_tokens;
    s.first_come = s.fixed_chunk;
    s.max_running = config.scheduler.max_running;
    s.max_waiting = config.scheduler.max_waiting;
    s.max_context = max_context;
    s.classes.push_back(class_from(config.sla));
    for (const SlaClass& sla : config.sla.classes) s.classes.push_back(class_from(sla));
    s.tenants.push_back({"", 1.0, 0, 0});
    for (const TenantSection& t : config.tenants) s.tenants.push_back({t.name, t.weight, t.max_running, t.max_waiting});
    return s;
}

}  // namespace takt
