// Cases from seeds; see sim_case.h.
#include "sim/sim_case.h"

#include <algorithm>
#include <sstream>

#include "runtime/sim/random.h"

namespace takt::engine_sim {

using sim::Random;
namespace {

constexpr uint64_t kMs = 1'000'000;

int32_t pick(Random& random, std::initializer_list<int32_t> values) {
    return values.begin()[random.below(values.size())];
}

bool one_in(Random& random, uint64_t n) { return random.below(n) == 0; }

std::vector<int32_t> draw_tokens(Random& random, int32_t count) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back(random.between(32, 126));
    return tokens;
}

void draw_classes(Random& random, SchedulerConfig& s) {
    const int32_t count = random.between(1, 3);
    for (int32_t i = 0; i < count; ++i) {
        SchedulerClass c;
        c.name = i == 0 ? "default" : "class" + std::to_string(i);
        c.itl_ns = static_cast<uint64_t>(pick(random, {7, 10, 20, 40, 80, 1000})) * kMs;
        c.ttft_ns = static_cast<uint64_t>(pick(random, {50, 200, 2000, 60000})) * kMs;
        c.envelope = one_in(random, 4);
        if (one_in(random, 10)) c.on_miss = SchedulerClass::OnMiss::refuse;
        if (one_in(random, 8)) c.on_miss = SchedulerClass::OnMiss::demote;
        c.weight = pick(random, {1, 1, 2, 4});
        s.classes.push_back(std::move(c));
    }
    s.tenants.push_back({"", 1.0, 0, 0});
    if (one_in(random, 3)) {
        const int32_t more = random.between(1, 3);
        for (int32_t i = 0; i < more; ++i) {
            SchedulerTenant t;
            t.name = "tenant" + std::to_string(i);
            t.weight = pick(random, {1, 2, 4});
            t.max_running = one_in(random, 3) ? random.between(1, 3) : 0;
            t.max_waiting = one_in(random, 4) ? random.between(1, 8) : 0;
            s.tenants.push_back(std::move(t));
        }
    }
}

void draw_reading(Random& random, SimClient& c) {
    c.reading = static_cast<Reading>(pick(random, {0, 0, 0, 0, 0, 1, 1, 2, 2, 3}));
    c.read_chunks = random.between(1, 12);
    const auto period = static_cast<uint64_t>(c.reading == Reading::slow ? random.between(1, 60) : random.between(50, 20000));
    c.read_period_ns = period * kMs;
    // Only an answer longer than the stream's bound pauses its request.
    if ((c.reading == Reading::slow || c.reading == Reading::stalls) && one_in(random, 2)) {
        c.max_tokens = random.between(280, 500);
        c.ignore_eos = true;
    }
}

void draw_cancel(Random& random, SimClient& c) {
    if (!one_in(random, 3)) return;
    c.cancel_at = static_cast<CancelAt>(random.between(1, 7));
    switch (c.cancel_at) {
        case CancelAt::time: c.cancel_count = random.below(600 * kMs); break;
        case CancelAt::gap: c.cancel_count = random.below(400); break;
        case CancelAt::planned:
        case CancelAt::applied: c.cancel_count = 1 + random.below(20); break;
        case CancelAt::token: c.cancel_count = 1 + random.below(static_cast<uint64_t>(c.max_tokens)); break;
        default: break;
    }
}

SimClient draw_client(Random& random, const SimCase& s, const std::vector<std::vector<int32_t>>& prefixes) {
    SimClient c;
    const int32_t longest = std::max(4, s.scheduler.max_context - 8);
    const int32_t kind = random.between(0, 9);
    int32_t prompt = kind < 3 ? random.between(1, 8) : kind < 8 ? random.between(1, 100) : random.between(50, 600);
    if (one_in(random, 60)) prompt = longest;   // at the edge
    prompt = std::min(prompt, longest);
    if (one_in(random, 2)) {
        const std::vector<int32_t>& prefix = prefixes[random.below(prefixes.size())];
        const auto length = static_cast<int32_t>(random.below(prefix.size() + 1));
        c.prompt.assign(prefix.begin(), prefix.begin() + std::min(length, prompt));
    }
    for (const int32_t token : draw_tokens(random, prompt - static_cast<int32_t>(c.prompt.size()))) c.prompt.push_back(token);
    c.max_tokens = one_in(random, 8) ? 1 : one_in(random, 6) ? random.between(100, 400) : random.between(1, 100);
    c.class_index = static_cast<int32_t>(random.below(s.scheduler.classes.size()));
    c.tenant_index = static_cast<int32_t>(random.below(s.scheduler.tenants.size()));
    c.cache_domain = one_in(random, 4) ? 1 + random.below(2) : 0;
    c.ignore_eos = one_in(random, 2);
    c.has_penalties = one_in(random, 12);
    c.has_logprobs = one_in(random, 12);
    c.envelope = one_in(random, 12);
    if (one_in(random, 8)) c.itl_ms = pick(random, {6, 15, 30, 200});
    if (one_in(random, 8)) c.ttft_ms = pick(random, {10, 100, 5000});
    if (one_in(random, 12)) c.deadline_ms = pick(random, {1, 20, 200, 3000, 100000});
    draw_reading(random, c);
    if (one_in(random, 10)) c.stop_at = random.between(1, c.max_tokens);
    draw_cancel(random, c);
    c.max_tokens = std::max(1, std::min(c.max_tokens, s.scheduler.max_context - prompt));
    return c;
}

void draw_clients(Random& random, SimCase& s) {
    std::vector<std::vector<int32_t>> prefixes;
    for (int i = 0; i < 3; ++i) prefixes.push_back(draw_tokens(random, random.between(10, 300)));
    const int32_t count = random.between(2, one_in(random, 4) ? 60 : 20);
    const auto mean_gap = static_cast<uint64_t>(pick(random, {0, 2, 10, 40, 150})) * kMs;   // 0: all at once
    uint64_t at = 0;
    for (int32_t i = 0; i < count; ++i) {
        s.clients.push_back(draw_client(random, s, prefixes));
        if (!one_in(random, 3)) at += random.below(2 * mean_gap + 1);   // a third arrive together with the one before
        s.clients.back().arrival_ns = at;
    }
}

/// A pool that holds at least the longest request alone: from that squeeze to room for everybody.
void draw_pool(Random& random, SimCase& s) {
    int64_t longest = 0, total = 0;
    for (const SimClient& c : s.clients) {
        const int64_t blocks = (static_cast<int64_t>(c.prompt.size()) + c.max_tokens + s.block_tokens - 1) / s.block_tokens;
        longest = std::max(longest, blocks);
        total += blocks;
    }
    int64_t blocks = longest;
    switch (random.between(0, 3)) {
        case 0: blocks = longest + random.between(0, 4); break;
        case 1: blocks = longest + total * random.between(0, 30) / 100; break;
        case 2: blocks = longest + longest * random.between(0, 100) / 100; break;
        default: blocks = longest + total; break;
    }
    if (one_in(random, 12)) blocks = std::max<int64_t>(2, longest * 2 / 3);   // somebody is refused, or cut short
    s.num_blocks = static_cast<int32_t>(blocks) + 1;
}

void draw_device(Random& random, SimCase& s) {
    s.device.seed = random.next();
    s.device.noise = 0.001 * pick(random, {0, 15, 15, 100});
    s.device.scale = 0.1 * pick(random, {10, 10, 10, 1, 40});
    s.speed_guess = 0.1 * pick(random, {10, 10, 7, 13, 50, 2});
    if (one_in(random, 5)) s.device.slow_launch = 1 + random.below(200);
    if (one_in(random, 8)) s.device.nonfinite_samples = static_cast<uint64_t>(random.between(20, 400));
    if (one_in(random, 10)) s.device.fail_launch = 1 + random.below(300);
    if (one_in(random, 3)) {
        s.pauses_per_mille = pick(random, {5, 50, 300});
        s.max_pause_ns = static_cast<uint64_t>(pick(random, {1, 20, 200})) * kMs;
    }
}

const char* reading_name(Reading r) {
    switch (r) {
        case Reading::eager: return "eager";
        case Reading::slow: return "slow";
        case Reading::stalls: return "stalls";
        case Reading::leaves: return "leaves";
    }
    return "?";
}

const char* cancel_name(CancelAt c) {
    switch (c) {
        case CancelAt::never: return "never";
        case CancelAt::at_once: return "at once";
        case CancelAt::time: return "time";
        case CancelAt::gap: return "gap";
        case CancelAt::planned: return "planned";
        case CancelAt::applied: return "applied";
        case CancelAt::token: return "token";
        case CancelAt::preempted: return "preempted";
        case CancelAt::gone: return "gone";
    }
    return "?";
}

}  // namespace

SimCase make_case(uint64_t seed) {
    Random random(seed);
    SimCase s;
    s.seed = seed;
    s.pipeline_depth = random.between(0, 1);
    s.prefix_cache = !one_in(random, 3);
    s.graphs = !one_in(random, 4);
    s.block_tokens = pick(random, {4, 8, 16, 32});
    SchedulerConfig& c = s.scheduler;
    c.fixed_chunk = one_in(random, 3);
    c.fixed_chunk_tokens = pick(random, {8, 16, 64, 100, 256, 700});
    c.max_running = pick(random, {1, 2, 3, 5, 8, 16});
    c.max_waiting = pick(random, {3, 64, 64, 64, 64, 64});
    c.max_context = pick(random, {200, 700, 1100});
    s.max_rows = std::max(c.max_running, pick(random, {16, 48, 128, 512, 1024}));
    draw_classes(random, c);
    draw_clients(random, s);
    draw_pool(random, s);
    draw_device(random, s);
    if (one_in(random, 12)) s.drain_ns = random.below(500 * kMs);
    return s;
}

SimCase quiet_case(int32_t num_clients, int32_t prompt_tokens, int32_t max_tokens) {
    Random random(static_cast<uint64_t>(prompt_tokens) * 1000 + static_cast<uint64_t>(max_tokens));
    SimCase s;
    s.device.noise = 0;
    s.scheduler.max_running = std::max(2, num_clients);
    s.scheduler.max_context = prompt_tokens + max_tokens + 64;
    SchedulerClass c;
    c.name = "default";
    s.scheduler.classes.push_back(std::move(c));
    s.scheduler.tenants.push_back({"", 1.0, 0, 0});
    for (int32_t i = 0; i < num_clients; ++i) {
        SimClient client;
        client.prompt = draw_tokens(random, prompt_tokens);
        client.max_tokens = max_tokens;
        client.ignore_eos = true;
        s.clients.push_back(std::move(client));
    }
    s.num_blocks = 2 + num_clients * ((prompt_tokens + max_tokens) / s.block_tokens + 2);
    return s;
}

std::string SimCase::describe() const {
    std::ostringstream out;
    out << "depth " << pipeline_depth << ", " << (scheduler.fixed_chunk ? "fixed-chunk " : "time-sliced ");
    if (scheduler.fixed_chunk) out << scheduler.fixed_chunk_tokens << ", ";
    out << "max_running " << scheduler.max_running << ", max_waiting " << scheduler.max_waiting << ", rows to " << max_rows
        << ", " << num_blocks - 1 << " blocks of " << block_tokens << ", cache " << prefix_cache << ", graphs " << graphs
        << ", noise " << device.noise << ", scale " << device.scale << ", guess " << speed_guess << ", fail "
        << device.fail_launch << ", slow " << device.slow_launch << ", nonfinite 1/" << device.nonfinite_samples << ", pauses "
        << pauses_per_mille << " to " << max_pause_ns / kMs << " ms, drain " << drain_ns / kMs << " ms\n";
    for (size_t i = 0; i < clients.size(); ++i) {
        const SimClient& c = clients[i];
        out << "  client " << i << ": at " << c.arrival_ns / 1000 << " us, prompt " << c.prompt.size() << ", max " << c.max_tokens
            << ", class " << c.class_index << ", tenant " << c.tenant_index << ", eos " << !c.ignore_eos << ", penalties "
            << c.has_penalties << ", deadline " << c.deadline_ms << ", stop at " << c.stop_at << ", "
            << reading_name(c.reading) << ' ' << c.read_chunks << '/' << c.read_period_ns / kMs << " ms, cancel "
            << cancel_name(c.cancel_at) << ' ' << c.cancel_count << '\n';
    }
    return out.str();
}

}  // namespace takt::engine_sim
