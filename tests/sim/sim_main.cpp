// The whole-engine simulation over many seeds: `--seeds N` from `--first F`, or one of them with `--seed N`, which also prints
// its case and every number. `--chaos` runs scene S10 of these seeds instead, the scheduler alone. A failure prints the seed, the
// commit, the invariant and the last 50 plans. `--digests` prints one line a seed; `--expect FILE` runs the seeds of such lines and
// compares: the same seed gives the same plans on every compiler.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include <takt/version.h>

#include "commit.h"
#include "kernels/assert.h"
#include "sim/chaos.h"
#include "sim/engine_sim.h"

namespace {

using namespace takt;

uint64_t current_seed = 0;
const engine_sim::EngineSim* current = nullptr;

void report_assert(const char* expression, const char* file, int line) {
    std::printf("seed %llu: assertion %s at %s:%d\n", static_cast<unsigned long long>(current_seed), expression, file, line);
    if (current != nullptr) std::printf("%s", const_cast<engine_sim::EngineSim*>(current)->checker().last_plans().c_str());
    std::fflush(stdout);
}

/// What the seeds have shown between them: a simulation that never squeezes or cancels would prove nothing.
struct Totals {
    uint64_t steps = 0, replayed = 0, handlers = 0, refused = 0, cancelled = 0, errors = 0, whole = 0, preemptions = 0, paused = 0;
    uint64_t lost = 0, cached = 0;
    int32_t most_preemptions = 0;

    void add(const engine_sim::SimReport& r) {
        steps += r.num_steps;
        replayed += r.num_replayed;
        handlers += r.num_handlers;
        refused += static_cast<uint64_t>(r.num_refused);
        cancelled += static_cast<uint64_t>(r.num_cancelled);
        errors += static_cast<uint64_t>(r.num_errors);
        whole += static_cast<uint64_t>(r.num_whole);
        preemptions += static_cast<uint64_t>(r.num_preemptions);
        paused += r.num_paused > 0 ? 1 : 0;
        cached += static_cast<uint64_t>(r.num_cached_tokens);
        lost += r.device_was_lost ? 1 : 0;
        most_preemptions = std::max(most_preemptions, r.most_preemptions);
    }
    [[nodiscard]] bool show_everything() const {
        return refused > 0 && cancelled > 0 && errors > 0 && whole > 0 && preemptions > 0 && paused > 0 && lost > 0 && cached > 0 &&
               replayed > 0 && replayed < steps;
    }
    void print(uint64_t seeds) const {
        auto n = [](uint64_t v) { return static_cast<unsigned long long>(v); };
        std::printf("%llu seeds: %llu steps (%llu replayed), %llu handlers; answers: %llu whole, %llu cancelled, %llu errors, "
                    "%llu refused; %llu preemptions (at most %d of one), %llu cached tokens, %llu seeds with a paused reader, "
                    "%llu with a lost device\n",
                    n(seeds), n(steps), n(replayed), n(handlers), n(whole), n(cancelled), n(errors), n(refused), n(preemptions),
                    most_preemptions, n(cached), n(paused), n(lost));
    }
};

/// Of all plans: the whole engine's, and the scheduler's alone with another clientele, on padded shapes and where rows are data.
uint64_t digest_of(uint64_t seed, uint64_t engine) {
    const auto requests = sim::chaos(seed, 100, 30, 1000);
    const uint64_t scheduler = sim::run(sim::chaos_options(seed, static_cast<int>(seed % 2), 300), requests).digest;
    const uint64_t rows = sim::run(sim::rows_chaos_options(seed, 300), requests).digest;
    return engine ^ (scheduler << 1 | scheduler >> 63) ^ (rows << 2 | rows >> 62);
}

bool run_seed(uint64_t seed, bool is_verbose, bool prints_digest, Totals& totals) {
    current_seed = seed;
    const engine_sim::SimCase spec = engine_sim::make_case(seed);
    if (is_verbose) std::printf("%s", spec.describe().c_str());
    engine_sim::EngineSim sim(spec);
    current = &sim;
    const engine_sim::SimReport report = sim.run();
    current = nullptr;
    totals.add(report);
    if (prints_digest) {
        std::printf("%llu %016llx\n", static_cast<unsigned long long>(seed),
                    static_cast<unsigned long long>(digest_of(seed, report.digest)));
    }
    if (report.wrong.empty()) return true;
    std::printf("seed %llu, takt %s, commit %s: %s\n%s%slast plans:\n%s", static_cast<unsigned long long>(seed), version(), sim::kCommit,
                report.wrong.c_str(), is_verbose ? "" : spec.describe().c_str(), "", report.last_plans.c_str());
    return false;
}

bool show_chaos(const char* device, const sim::ChaosRun& chaos, bool is_verbose) {
    if (is_verbose) {
        std::printf("%s: %zu requests, %llu steps, %llu at the floor, %llu preemptions, digest %016llx\n", device, chaos.requests.size(),
                    static_cast<unsigned long long>(chaos.report.num_steps), static_cast<unsigned long long>(chaos.report.num_at_floor),
                    static_cast<unsigned long long>(chaos.report.num_preemptions),
                    static_cast<unsigned long long>(chaos.report.digest));
    }
    if (chaos.report.wrong.empty()) return true;
    std::printf("commit %s, %s: %s\n", sim::kCommit, device, chaos.report.wrong.c_str());
    return false;
}

bool run_chaos_seed(uint64_t seed, bool is_verbose) {
    current_seed = seed;
    const bool is_sound = show_chaos("padded shapes", sim::run_chaos(seed), is_verbose);
    return show_chaos("rows are data", sim::run_rows_chaos(seed), is_verbose) && is_sound;
}

/// Seeds and digests as `--digests` prints them; lines that begin with # are comments.
int compare_digests(const char* path) {
    std::ifstream in(path);
    std::string line;
    int num_lines = 0, num_wrong = 0;
    while (std::getline(in, line)) {
        if (line.empty() || line[0] == '#') continue;
        char* end = nullptr;
        const uint64_t seed = std::strtoull(line.c_str(), &end, 10);
        const uint64_t expected = std::strtoull(end, nullptr, 16);
        const engine_sim::SimCase spec = engine_sim::make_case(seed);
        const uint64_t found = digest_of(seed, engine_sim::EngineSim(spec).run().digest);
        ++num_lines;
        if (found == expected) continue;
        ++num_wrong;
        std::printf("seed %llu: digest %016llx, expected %016llx\n", static_cast<unsigned long long>(seed),
                    static_cast<unsigned long long>(found), static_cast<unsigned long long>(expected));
    }
    std::printf("%d digests of %s compared, %d differ\n", num_lines, path, num_wrong);
    return num_wrong == 0 && num_lines > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    uint64_t first = 1, count = 200;
    bool is_verbose = false, prints_digest = false, is_chaos = false;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        const char* value = i + 1 < argc ? argv[i + 1] : "";
        if (name == "--digests") {
            prints_digest = true;
        } else if (name == "--chaos") {
            is_chaos = true;
        } else if (name == "--seed") {
            first = std::strtoull(value, nullptr, 10);
            count = 1;
            is_verbose = true;
            ++i;
        } else if (name == "--expect") {
            return compare_digests(value);
        } else if (name == "--first") {
            first = std::strtoull(value, nullptr, 10);
            ++i;
        } else if (name == "--seeds") {
            count = std::strtoull(value, nullptr, 10);
            ++i;
        } else {
            std::fprintf(stderr, "usage: sim_main [--chaos] [--seed N | --first N --seeds N | --expect FILE] [--digests]\n");
            return 2;
        }
    }
    set_assert_handler(report_assert);
    Totals totals;
    uint64_t num_wrong = 0;
    for (uint64_t seed = first; seed < first + count; ++seed) {
        const bool is_sound = is_chaos ? run_chaos_seed(seed, is_verbose) : run_seed(seed, is_verbose, prints_digest, totals);
        num_wrong += is_sound ? 0 : 1;
        if (num_wrong == 5) break;
    }
    if (prints_digest) std::printf("# ");   // what --expect takes for a comment
    if (!is_chaos) totals.print(count);
    if (!is_chaos && count >= 100 && num_wrong == 0 && !totals.show_everything()) {
        std::printf("the seeds do not show everything that they should\n");
        return 1;
    }
    if (num_wrong > 0) std::printf("replay with: sim_main%s --seed N\n", is_chaos ? " --chaos" : "");
    return num_wrong == 0 ? 0 : 1;
}
