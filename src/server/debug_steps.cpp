// See debug_steps.h.
#include "server/debug_steps.h"

#include <algorithm>
#include <charconv>

#include "server/json_text.h"

namespace takt::server {

namespace {

void append_field(std::string& out, const char* name, double value) {
    out += out.back() == '{' ? "\"" : ",\"";
    out += name;
    out += "\":";
    append_json_number(out, value);
}

void append_count(std::string& out, const char* name, std::int64_t value) {
    out += out.back() == '{' ? "\"" : ",\"";
    out += name;
    out += "\":";
    append_json_number(out, value);
}

double ms(std::uint64_t ns) { return static_cast<double>(ns / 1000) * 1e-3; }

void append_step(std::string& out, const StepRecord& s) {
    out += '{';
    append_count(out, "step", static_cast<std::int64_t>(s.step));
    append_field(out, "begin_ms", ms(s.begin_ns));
    append_field(out, "end_ms", ms(s.end_ns));
    append_field(out, "host_ms", ms(s.host_ns));
    append_field(out, "predicted_ms", s.predicted_ms);
    append_field(out, "budget_ms", s.budget_ms);
    append_count(out, "decode_rows", s.num_decode_rows);
    append_count(out, "prefill_rows", s.num_prefill_rows);
    append_count(out, "padded_rows", s.padded_rows);
    append_count(out, "running", s.num_running);
    append_count(out, "waiting", s.num_waiting);
    append_count(out, "preempted", s.num_preempted);
    append_count(out, "kv_blocks_used", s.kv_blocks_used);
    out += s.graph ? ",\"graph\":true" : ",\"graph\":false";
    append_count(out, "late", s.num_late);
    append_field(out, "late_ms", s.late_ms);
    out += ",\"late_cause\":";
    append_json_string(out, s.late_cause);
    out += '}';
}

}  // namespace

std::size_t steps_asked(std::string_view query) {
    constexpr std::string_view name = "last=";
    while (!query.empty()) {
        const std::string_view field = query.substr(0, query.find('&'));
        query.remove_prefix(std::min(field.size() + 1, query.size()));
        if (field.substr(0, name.size()) != name) continue;
        std::size_t count = 0;
        const char* const last = field.data() + field.size();
        const auto [end, error] = std::from_chars(field.data() + name.size(), last, count);
        return error == std::errc() && end == last && count <= kMostSteps ? count : 0;
    }
    return kUsualSteps;
}

std::string steps_json(std::span<const StepRecord> steps, std::size_t count) {
    const std::span<const StepRecord> shown = steps.last(std::min(count, steps.size()));
    std::string out = "{\"steps\":[";
    for (const StepRecord& step : shown) {
        if (&step != shown.data()) out += ',';
        append_step(out, step);
    }
    out += "]}\n";
    return out;
}

}  // namespace takt::server
