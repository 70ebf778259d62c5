// Workload: see the header.
#include "runtime/sim/workload.h"

#include <algorithm>

#include <takt/error.h>

#include "runtime/sim/random.h"

namespace takt::sim {
namespace {

// What a client asks for as a bound when it does not know how long the answer will be.
constexpr int64_t kUsualMaxTokens = 1024;

/// Stamps of one batch lie between it and the next, in order, one in each equal part.
void spread_batches(std::vector<double>& at_s, uint64_t seed) {
    Random random(seed ^ 0x7370726561640000ULL);
    double usual_gap = 0;
    for (size_t begin = 0; begin < at_s.size();) {
        size_t end = begin;
        while (end < at_s.size() && at_s[end] == at_s[begin]) ++end;
        const double gap = end < at_s.size() ? at_s[end] - at_s[begin] : usual_gap;
        usual_gap = gap;
        const double first = at_s[begin], part = gap / static_cast<double>(end - begin);
        for (size_t i = begin; i < end; ++i) at_s[i] = first + part * (static_cast<double>(i - begin) + random.uniform());
        begin = end;
    }
}

int32_t tenant_index(const std::string& name, std::vector<std::string>& tenants) {
    if (name.empty()) return 0;
    const auto at = std::find(tenants.begin(), tenants.end(), name);
    if (at != tenants.end()) return static_cast<int32_t>(at - tenants.begin());
    tenants.push_back(name);
    return static_cast<int32_t>(tenants.size()) - 1;
}

}  // namespace

std::vector<SimRequest> make_workload(const Trace& trace, const SimulateOptions& options, uint64_t seed, int32_t max_context,
                                      std::vector<std::string>& tenants) {
    if (tenants.empty()) tenants.emplace_back();
    std::vector<double> at_s;
    for (const TraceArrival& a : trace.arrivals) at_s.push_back(a.at_s);
    if (trace.is_batched && options.spread) spread_batches(at_s, seed);
    const double span = at_s.back() + (at_s.size() > 1 ? at_s.back() / static_cast<double>(at_s.size() - 1) : 1.0);
    const size_t count = options.requests > 0 ? static_cast<size_t>(options.requests) : at_s.size();
    std::vector<SimRequest> out;
    out.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        const size_t place = i % at_s.size(), round = i / at_s.size();
        const double at = at_s[place] + static_cast<double>(round) * span;
        if (options.seconds > 0 && at > options.seconds) break;
        const TraceArrival& a = trace.arrivals[place];
        SimRequest r;
        if (at / options.rate > kMostSeconds) throw config_error("at this rate the trace lasts over 1e10 seconds");
        r.arrival_ns = static_cast<uint64_t>(at / options.rate * 1e9);
        r.tenant_index = tenant_index(a.tenant, tenants);
        const int64_t room = int64_t{max_context} - 1;
        r.prompt_tokens = static_cast<int32_t>(std::clamp<int64_t>(a.input_tokens, 1, room));
        r.output_tokens = static_cast<int32_t>(std::clamp<int64_t>(a.output_tokens, 1, max_context - r.prompt_tokens));
        r.max_tokens = static_cast<int32_t>(
            std::min<int64_t>(std::max<int64_t>(r.output_tokens, kUsualMaxTokens), max_context - r.prompt_tokens));
        // A second round shares nothing with the first: its beginnings are its own.
        for (const uint64_t block : a.prefix_blocks) r.prefix_blocks.push_back(block + (static_cast<uint64_t>(round) << 40));
        out.push_back(std::move(r));
    }
    return out;
}

}  // namespace takt::sim
