// scene_bench: the scheduler's scenes in figures, on the H100 profile and a virtual clock: a document beside streams, a load that
// moves, short prompts during a document, a device that becomes slower. Exact and repeatable: no machine's speed is in it.
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <takt/percentiles.h>

#include "runtime/sim/scene.h"

namespace {

using namespace takt;
using namespace takt::sim;

struct Policy {
    std::string name;
    std::function<void(SimOptions&)> set;
};

Policy ours() {
    return {"ms", [](SimOptions&) {}};
}
Policy chunk(int32_t tokens) {
    return {tokens > 50'000 ? "unchunked" : "chunk:" + std::to_string(tokens), [tokens](SimOptions& o) { set_chunk(o, tokens); }};
}
Policy total(int32_t rows) {
    return {"budget:" + std::to_string(rows), [rows](SimOptions& o) {
                set_chunk(o, rows);
                o.scheduler.chunk_holds_decodes = true;
            }};
}

class Writer {
public:
    void line(const std::string& text) {
        std::puts(text.c_str());
        out_ += (out_.empty() ? "" : ",\n ") + text;
    }
    void save(const std::string& path) const { std::ofstream(path) << "[\n " << out_ << "\n]\n"; }

private:
    std::string out_;
};

std::string number(const char* key, double value) {
    char text[96];
    std::snprintf(text, sizeof text, ", \"%s\": %.6g", key, value);
    return text;
}

std::string gaps_text(std::vector<double>& gaps, double sla) {
    double late = 0, late_ms = 0;
    for (const double g : gaps) {
        late += g > sla ? 1 : 0;
        late_ms += std::max(0.0, g - sla);
    }
    const double count = std::max(1.0, static_cast<double>(gaps.size()));
    return number("gaps", static_cast<double>(gaps.size())) + number("itl_p50_ms", percentile(gaps, 0.5)) +
           number("itl_p99_ms", percentile(gaps, 0.99)) + number("itl_max_ms", percentile(gaps, 1)) +
           number("late_percent", 100 * late / count) + number("late_ms_per_1000", 1000 * late_ms / count);
}

std::string head(const char* scene_name, const Policy& policy, double sla, int depth) {
    return std::string("{\"scene\": \"") + scene_name + "\", \"policy\": \"" + policy.name + "\"" + number("sla_ms", sla) +
           number("depth", depth);
}

/// One stream that runs on, a prompt put in: S1 and S2.
void insertion(Writer& w) {
    for (const double sla : {11.5, 23.0, 34.5, 46.0}) {
        for (const int32_t prompt : {189, 8192, 32'768, 110'000}) {
            double whole = 0;
            for (const Policy& policy : {chunk(200'000), ours(), chunk(8), chunk(64), chunk(512), chunk(2048)}) {
                if (policy.name == "chunk:8" && prompt > 10'000) continue;
                std::vector<SimRequest> requests{request_at(0, 16, 1), request_at(50, prompt, 1)};
                requests[0].output_tokens = requests[0].max_tokens = std::max(200, prompt / 4);
                SimOptions o = scene(sla, 32, 9000);
                o.check = false;
                policy.set(o);
                std::vector<std::pair<double, double>> all;
                o.on_gap = [&](const SimGap& g) {
                    all.emplace_back(static_cast<double>(g.end_ns) * 1e-6, static_cast<double>(g.gap_ns) * 1e-6);
                };
                const SimReport report = run(o, requests);
                const double end = static_cast<double>(report.requests[1].first_ns) * 1e-6;
                std::vector<double> gaps;
                for (const auto& [at, gap] : all) {
                    if (at >= 50 && at <= end + 1) gaps.push_back(gap);
                }
                const double ttft = ttft_ms(report, requests, 1);
                if (policy.name == "unchunked") whole = ttft;
                w.line(head("insertion", policy, sla, o.depth) + number("prompt", prompt) + gaps_text(gaps, sla) +
                       number("ttft_ms", ttft) + number("over_unsplit", ttft / whole) + "}");
            }
        }
    }
}

/// Documents back to back beside streams: S3, and what a budget tuned there does on other loads.
void moved_load(Writer& w) {
    struct Load {
        const char* name;
        int streams;
        int32_t context, document;
        int documents;
    };
    const Load loads[] = {{"16 streams at 2k, 32k documents", 16, 2048, 32'768, 6},
                          {"64 streams at 4k, 32k documents", 64, 4096, 32'768, 6},
                          {"16 streams at 2k, 110k documents", 16, 2048, 110'000, 2},
                          {"4 streams at 1k, 32k documents", 4, 1024, 32'768, 6}};
    for (const double sla : {20.0, 40.0, 80.0}) {
        for (const Load& load : loads) {
            for (const Policy& policy : {ours(), total(128), total(192), total(256), total(512), total(1024), total(2048)}) {
                std::vector<SimRequest> requests;
                for (int i = 0; i < load.streams; ++i) requests.push_back(request_at(0.1 * i, load.context, 2500));
                for (int i = 0; i < load.documents; ++i) requests.push_back(request_at(8000 + i, load.document, 1));
                SimOptions o = scene(sla, 96, 60'000);
                o.check = false;
                o.kv.prefix_cache = false;
                o.scheduler.classes[0].ttft_ns = 600'000'000'000;   // order is not the question here
                policy.set(o);
                std::vector<std::pair<double, double>> all;
                o.on_gap = [&](const SimGap& g) {
                    all.emplace_back(static_cast<double>(g.end_ns) * 1e-6, static_cast<double>(g.gap_ns) * 1e-6);
                };
                const SimReport report = run(o, requests);
                double end = 0, tokens = 0;
                for (size_t i = static_cast<size_t>(load.streams); i < requests.size(); ++i) {
                    end = std::max(end, static_cast<double>(report.requests[i].first_ns) * 1e-6);
                    tokens += load.document;
                }
                std::vector<double> gaps;
                for (const auto& [at, gap] : all) {
                    if (at >= 8010 && at <= end) gaps.push_back(gap);
                }
                w.line(head("documents back to back", policy, sla, o.depth) + ", \"load\": \"" + load.name + "\"" + gaps_text(gaps, sla) +
                       number("prefill_tokens_per_s", tokens / (end - 8000) * 1000) + "}");
            }
        }
    }
}

/// Short prompts during a 32k document: S4.
void short_prompts(Writer& w) {
    for (const int depth : {0, 1}) {
        for (const double sla : {20.0, 40.0}) {
            for (const Policy& policy : {ours(), total(512), total(2048), total(8192)}) {
                double idle = 0;
                for (const bool with_document : {false, true}) {
                    std::vector<SimRequest> requests;
                    for (int i = 0; i < 16; ++i) requests.push_back(request_at(0.1 * i, 1024, 600));
                    for (int i = 0; i < 8; ++i) requests.push_back(request_at(700 + 200 * i, 512, 20));
                    if (with_document) requests.push_back(request_at(600, 32'768, 20));
                    SimOptions o = scene(sla, 32, 9000);
                    o.check = false;
                    o.depth = depth;
                    policy.set(o);
                    const SimReport report = run(o, requests);
                    double mean = 0, most = 0;
                    for (size_t i = 16; i < 24; ++i) {
                        mean += ttft_ms(report, requests, i) / 8;
                        most = std::max(most, ttft_ms(report, requests, i));
                    }
                    if (!with_document) {
                        idle = mean;
                        continue;
                    }
                    std::vector<double> gaps;
                    for (const uint32_t us : report.gaps_us[0]) gaps.push_back(us * 1e-3);
                    w.line(head("short prompts during a document", policy, sla, depth) + number("short_ttft_mean_ms", mean) +
                           number("short_ttft_max_ms", most) + number("short_ttft_idle_ms", idle) +
                           number("in_budgets_over_idle", (mean - idle) / sla) + number("document_ttft_ms", ttft_ms(report, requests, 24)) +
                           gaps_text(gaps, sla) + "}");
                }
            }
        }
    }
}

/// Step times x1.15 from 3 s, x0.9 from 6 s; a cold table; host pauses: S9.
void disturbance(Writer& w) {
    struct Case {
        const char* name;
        bool slower, cold, pauses;
    };
    for (const Case& c : {Case{"calm", false, false, false}, Case{"x1.15 at 3 s, x0.9 at 6 s", true, false, false},
                          Case{"cold table", false, true, false}, Case{"host pauses of 5 ms", false, false, true}}) {
        std::vector<SimRequest> requests;
        for (int i = 0; i < 16; ++i) requests.push_back(request_at(0.1 * i, 2048, 900));
        for (int i = 0; i < 8; ++i) requests.push_back(request_at(600 + i, 32'768, 1));
        SimOptions o = scene(40, 32, 30'000);
        o.check = false;
        o.scheduler.classes[0].ttft_ns = 600'000'000'000;
        if (c.slower) o.disturbance = [](uint64_t t) { return t > 6'000'000'000 ? 0.9 : t > 3'000'000'000 ? 1.15 : 1.0; };
        if (c.cold) o.cost_table.clear();
        if (c.pauses) o.host_pause = [](uint64_t t) { return (t / 1'000'000) % 97 == 0 ? uint64_t{5'000'000} : uint64_t{0}; };
        GapWindow first, later;
        std::vector<std::pair<double, double>> all;
        o.on_gap = [&](const SimGap& g) {
            all.emplace_back(static_cast<double>(g.end_ns) * 1e-6, static_cast<double>(g.gap_ns) * 1e-6);
        };
        const SimReport report = run(o, requests);
        double end = 0;
        for (size_t i = 16; i < requests.size(); ++i) end = std::max(end, static_cast<double>(report.requests[i].first_ns) * 1e-6);
        for (const auto& [at, gap] : all) {
            if (at < 3000 || at > end) continue;
            (first.gaps.size() < 300 * 16 ? first : later).gaps.push_back(gap);
        }
        w.line(head("disturbance", ours(), 40, o.depth) + ", \"case\": \"" + c.name + "\"" +
               number("late_percent_first_300_steps", 100 * first.late_share(40)) +
               number("late_percent_after", 100 * later.late_share(40)) + number("last_document_s", end / 1000) + "}");
    }
}

/// One tenant sends 8k documents at ten times a fair share of the device, 26 others prompts of 200 to 4,000 tokens: S8.
void fairness(Writer& w) {
    constexpr double kSeconds = 60;
    for (const double mean_gap_ms : {430.0, 215.0, 143.0, 107.5}) {
        double mean[2] = {0, 0}, late[2] = {0, 0}, others_ms = 0, gap_ms = 0, document_ms = 0;
        for (const bool heavy : {false, true}) {
            Random random(5);
            std::vector<SimRequest> requests;
            for (double at = random.exponential(mean_gap_ms); at < 1000 * kSeconds; at += random.exponential(mean_gap_ms)) {
                requests.push_back(drawn_at(at, random, {200, 4000}, {5, 60}));
                requests.back().tenant_index = random.between(0, 25);
            }
            const size_t count = requests.size();
            for (double at = 0; heavy && at < 1000 * kSeconds; at += 475) {
                requests.push_back(request_at(at, 8192, 20));
                requests.back().tenant_index = 26;
            }
            SimOptions o = scene(40, 128, 30'000);
            o.check = false;
            o.scheduler.tenants.assign(27, {"t", 1.0, 0, 0});
            GapWindow gaps;
            gaps.listen(o);
            const SimReport report = run(o, requests);
            for (size_t i = 0; i < count; ++i) mean[heavy] += ttft_ms(report, requests, i) / static_cast<double>(count);
            late[heavy] = 100 * gaps.late_share(40);
            if (!heavy) {
                for (const double ms : report.tenant_ms) others_ms += ms;
                continue;
            }
            gap_ms = report.greatest_share_gap_ms;
            const auto documents = static_cast<double>(requests.size() - count);
            for (size_t i = count; i < requests.size(); ++i) document_ms += ttft_ms(report, requests, i) / documents;
        }
        w.line(head("one tenant's documents beside 26 others", ours(), 40, 1) +
               number("others_device_share", others_ms / 1000 / kSeconds) + number("others_ttft_ms_alone", mean[0]) +
               number("others_ttft_ms_beside", mean[1]) + number("over_alone", mean[1] / mean[0]) +
               number("document_ttft_ms", document_ms) + number("greatest_counter_gap_ms", gap_ms) +
               number("late_percent_alone", late[0]) + number("late_percent", late[1]) + "}");
    }
}

}  // namespace

int main(int argc, char** argv) {
    Writer writer;
    insertion(writer);
    moved_load(writer);
    short_prompts(writer);
    disturbance(writer);
    fairness(writer);
    for (int i = 1; i + 1 < argc; ++i) {
        if (std::string(argv[i]) == "--json") writer.save(argv[i + 1]);
    }
    return 0;
}
