// read_trace and takt::simulate: formats, errors, policies, determinism, and plans held against the invariants.
#include <takt/simulate.h>

#include <fstream>

#include <takt/error.h>

#include "catch.h"

namespace takt {
namespace {

const std::string kAzure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-30 23:59:59.5000000,4808,10\r\n2023-12-01 00:00:00.2500000,3180,8\r\n"
    "2023-12-01 00:00:02.0000000,110,27";
const std::string kMooncake =
    "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 50, \"hash_ids\": [0, 1, 2]}\n"
    "{\"timestamp\": 0, \"input_length\": 1500, \"output_length\": 40, \"hash_ids\": [0, 1, 7]}\n"
    "{\"timestamp\": 3000, \"input_length\": 700, \"output_length\": 3, \"hash_ids\": [0, 9]}\n";

std::string error_of(const std::string& text) {
    try {
        (void)parse_trace(text, "t.csv");
    } catch (const load_error& e) {
        return e.what();
    }
    return {};
}

Trace steady(int count, double gap_s, int64_t input, int64_t output) {
    Trace trace;
    for (int i = 0; i < count; ++i) trace.arrivals.push_back({gap_s * i, "", input + i % 7, output, {}});
    return trace;
}

Config small_pool() {
    Config config;
    config.device.memory_budget_mib = 13'200;   // beside the weights about 2,500 tokens: a squeeze
    config.model.max_context = 2048;
    return config;
}

}  // namespace

TEST_CASE("traces of three formats", "[simulate]") {
    const Trace azure = parse_trace(kAzure, "a");
    REQUIRE(azure.arrivals.size() == 3);
    CHECK(azure.format == "azure");
    CHECK(azure.arrivals[0].at_s == 0);
    CHECK(azure.arrivals[1].at_s == Approx(0.75).margin(1e-4));   // over midnight and the end of a month
    CHECK(azure.arrivals[2].input_tokens == 110);
    CHECK(azure.arrivals[2].output_tokens == 27);
    const Trace mooncake = parse_trace(kMooncake, "m");
    REQUIRE(mooncake.arrivals.size() == 3);
    CHECK(mooncake.is_batched);
    CHECK(mooncake.arrivals[2].at_s == 3);
    CHECK(mooncake.arrivals[1].prefix_blocks == std::vector<uint64_t>{0, 1, 7});
    const Trace csv = parse_trace("arrival_s,tenant,input_tokens,output_tokens\n2.5,b,10,20\n0.5,a,3,4\n", "c");
    REQUIRE(csv.arrivals.size() == 2);
    CHECK(csv.arrivals[0].tenant == "a");   // in order of time, from the first
    CHECK(csv.arrivals[1].at_s == 2.0);
}

TEST_CASE("a trace's errors name file and line", "[simulate]") {
    CHECK(error_of("") == "t.csv:0: the trace is empty");
    CHECK(error_of("a,b\n1,2\n").find("t.csv:1: \"a,b\" found; expected ") == 0);
    CHECK(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,x,10\n").find("t.csv:2: ") == 0);
    CHECK(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n18:17:03.9,1,10\n").find("t.csv:2: a time as ") == 0);
    CHECK(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,5\n").find("t.csv:2: a field is missing") == 0);
    CHECK(error_of("arrival_s,tenant,input_tokens,output_tokens\n-1,a,1,1\n").find("t.csv:2: ") == 0);
    CHECK(error_of("arrival_s,tenant,input_tokens,output_tokens\n1,a,1.5,1\n").find("t.csv:2: a count of tokens") == 0);
    CHECK(error_of("arrival_s,tenant,input_tokens,output_tokens\n1,a,1,1,9\n").find("t.csv:2: a field too many: \"9\"") == 0);
    CHECK(error_of("arrival_s,tenant,input_tokens,output_tokens\n1e11,a,1,1\n").find("t.csv:2: a time of ") == 0);
    for (const char* stamp : {"2023-13-16 18:17:03", "2023-00-16 18:17:03", "2023-11-32 18:17:03", "2023-11-16 24:17:03",
                              "2023-11-16 18:60:03", "2023-11-16 18:17:61"}) {
        const std::string line = std::string(stamp) + ",5,10\n";
        CHECK(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n" + line).find("t.csv:2: no such time: ") == 0);
    }
    CHECK(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,5,10,3\n").find("t.csv:2: a field too many") == 0);
    CHECK(error_of("{\"timestamp\": 0, \"input_length\": 1.5, \"output_length\": 1}\n").find("t.csv:1: a count of tokens") == 0);
    CHECK(error_of("{\"timestamp\": 0, \"input_length\": 1e9, \"output_length\": 1}\n").find("t.csv:1: \"input_length\" is over") == 0);
    CHECK(error_of("{\"timestamp\": 1e300, \"input_length\": 1, \"output_length\": 1}\n").find("t.csv:1: \"timestamp\" is over") == 0);
    CHECK(error_of("{\"timestamp\": 0, \"input_length\": 1}\n").find("t.csv:1: ") == 0);
    CHECK(error_of("{\"timestamp\": 0\n").find("t.csv:1: a JSON object") == 0);
    CHECK(error_of("TIMESTAMP,ContextTokens,GeneratedTokens\n").find("no arrival") != std::string::npos);
}

TEST_CASE("the same call gives the same figures, another seed other ones", "[simulate]") {
    const Trace trace = steady(60, 0.05, 900, 20);
    SimulateOptions options;
    options.policies = {"ms", "chunk:256"};
    const auto first = simulate(Config{}, trace, options), second = simulate(Config{}, trace, options);
    REQUIRE(first.size() == 2);
    for (size_t i = 0; i < 2; ++i) {
        CHECK(first[i].digest == second[i].digest);
        CHECK(first[i].total.ttft_ms.p99 == second[i].total.ttft_ms.p99);
        CHECK(first[i].total.finished == 60);
    }
    CHECK(first[0].digest != first[1].digest);
    options.seed = 77;
    CHECK(simulate(Config{}, trace, options)[0].total.ttft_ms.mean != first[0].total.ttft_ms.mean);
}

TEST_CASE("every policy keeps the books and the text under a squeeze", "[simulate]") {
    SimulateOptions options;
    options.policies = {"ms", "ms-fcfs", "chunk:64", "budget:256", "unchunked", "p-pas"};
    options.check = true;
    for (const int depth : {0, 1}) {
        Config config = small_pool();
        config.scheduler.pipeline_depth = depth;
        uint64_t preemptions = 0;
        for (const SimulateResult& r : simulate(config, steady(24, 0.02, 300, 700), options)) {
            INFO(r.policy << ", depth " << depth << ": " << r.wrong);
            CHECK(r.wrong.empty());
            CHECK(r.total.finished == 24);
            CHECK(r.total.output_tokens == 24 * 700);
            preemptions += r.preemptions;
        }
        CHECK(preemptions > 0);
    }
}

TEST_CASE("shared beginnings are found in the cache and cost nothing", "[simulate]") {
    const Trace trace = parse_trace(kMooncake, "m");
    SimulateOptions options;
    options.check = true;
    const SimulateResult with = simulate(Config{}, trace, options)[0];
    CHECK(with.wrong.empty());
    CHECK(with.cached_tokens >= 512);
    Config config;
    config.kv.prefix_cache = false;
    CHECK(simulate(config, trace, options)[0].cached_tokens == 0);
}

TEST_CASE("figures mean what they say", "[simulate]") {
    Config config;
    config.sim.noise = 0;
    const SimulateResult r = simulate(config, steady(1, 1, 100, 11), {})[0];
    CHECK(r.total.itl_ms.count == 10);
    CHECK(r.total.itl_ms.p50 == Approx(5.8).margin(0.5));   // a decode step of the profile and the host's part
    CHECK(r.total.tpot_ms.mean == Approx(r.total.itl_ms.mean).epsilon(0.01));
    CHECK(r.total.request_ms.max == Approx(r.total.ttft_ms.max + 10 * r.total.tpot_ms.max).epsilon(0.001));
    CHECK(r.total.goodput_share == 1);
    CHECK(r.total.late_share == 0);
    config.sla.itl_ms = 3;   // below a decode step: every gap is late
    const SimulateResult late = simulate(config, steady(1, 1, 100, 11), {})[0];
    CHECK(late.total.late_share == 1);
    CHECK(late.total.goodput_share == 0);
    CHECK(late.total.late_ms_per_1000 == Approx((late.total.itl_ms.mean - 3) * 10 / 11 * 1000).epsilon(0.01));
    double causes = 0;
    for (const double ms : late.late_ms_by_cause) causes += ms;
    CHECK(causes == Approx((late.total.itl_ms.mean - 3) * 10).epsilon(0.01));
}

TEST_CASE("requests of a tenant that the configuration names are of its class", "[simulate]") {
    Config config;
    config.sla.ttft_ms = 100;   // the documents take longer: good only by the promise of their own class
    SlaClass patient = config.sla;
    patient.name = "patient";
    patient.ttft_ms = 60'000;
    config.sla.classes.push_back(patient);
    TenantSection papers;
    papers.name = "papers";
    papers.key_env = "KEY";
    papers.sla_class = "patient";
    config.tenants.push_back(papers);
    const std::string head = "arrival_s,tenant,input_tokens,output_tokens\n";
    const Trace trace = parse_trace(head + "0,chat,100,10\n1,papers,20000,5\n2,papers,20000,5\n", "t");
    const SimulateResult r = simulate(config, trace, {})[0];
    REQUIRE(r.classes.size() == 2);
    CHECK(r.classes[0].requests == 1);
    CHECK(r.classes[1].requests == 2);
    CHECK(r.classes[1].ttft_ms.p50 > 100);
    CHECK(r.classes[1].goodput_share == 1);
    CHECK(r.total.goodput_share == 1);
}

TEST_CASE("requests that are longer than the context are counted", "[simulate]") {
    Config config;
    config.model.max_context = 1000;
    const Trace trace = parse_trace("arrival_s,tenant,input_tokens,output_tokens\n0,a,999,1\n1,a,1000,1\n2,a,900,101\n", "t");
    CHECK(simulate(config, trace, {})[0].cut_requests == 2);
    config.model.max_context = 0;
    CHECK(simulate(config, trace, {})[0].cut_requests == 0);
}

TEST_CASE("stamps of a batch are spread over the time to the next one, unless told otherwise", "[simulate]") {
    std::string lines;
    for (const int at : {0, 10'000, 20'000}) {
        for (int i = 0; i < 10; ++i) lines += "{\"timestamp\": " + std::to_string(at) + ", \"input_length\": 8000, \"output_length\": 1}\n";
    }
    const Trace trace = parse_trace(lines, "t");
    SimulateOptions options;
    const Percentiles spread = simulate(Config{}, trace, options)[0].total.ttft_ms;
    options.spread = false;
    const Percentiles batched = simulate(Config{}, trace, options)[0].total.ttft_ms;
    CHECK(batched.max > 9 * spread.p50);   // the last of ten at once waits for the others
    CHECK(spread.max < 3 * spread.p50);
}

TEST_CASE("p-pas: 2,048 tokens while several prompts wait beside a stream, else 16,384", "[simulate]") {
    const std::string head = "arrival_s,tenant,input_tokens,output_tokens\n0,a,16,600\n";
    SimulateOptions options;
    options.policies = {"p-pas", "chunk:2048", "chunk:16384"};
    const auto alone = simulate(Config{}, parse_trace(head + "1,b,16000,1\n", "t"), options);
    CHECK(alone[0].total.itl_ms.max == Approx(alone[2].total.itl_ms.max).epsilon(0.1));
    CHECK(alone[0].total.itl_ms.max > 3 * alone[1].total.itl_ms.max);
    const auto several = simulate(Config{}, parse_trace(head + "1,b,30000,1\n1,b,2000,1\n", "t"), options);   // the short one comes second
    CHECK(several[0].total.itl_ms.max < 0.5 * several[2].total.itl_ms.max);
}

TEST_CASE("rate, seconds and requests cut and scale the trace", "[simulate]") {
    const Trace trace = steady(100, 0.1, 50, 2);
    SimulateOptions options;
    options.seconds = 2.05;
    CHECK(simulate(Config{}, trace, options)[0].total.requests == 21);
    options.seconds = 0;
    options.requests = 250;
    options.rate = 2;
    const SimulateResult r = simulate(Config{}, trace, options)[0];
    CHECK(r.total.requests == 250);
    CHECK(r.seconds == Approx(12.5).margin(0.3));
}

TEST_CASE("what cannot be simulated is said", "[simulate]") {
    const Trace trace = steady(2, 1, 5, 2);
    SimulateOptions options;
    for (const char* policy : {"fast", "chunk:", "chunk:0", "budget:x"}) {
        options.policies = {policy};
        CHECK_THROWS_AS(simulate(Config{}, trace, options), config_error);
    }
    options.policies.clear();
    options.profile = "nonsense";
    CHECK_THROWS_AS(simulate(Config{}, trace, options), config_error);
    options.profile.clear();
    options.rate = 0;
    CHECK_THROWS_AS(simulate(Config{}, trace, options), config_error);
    CHECK_THROWS_AS(simulate(Config{}, Trace{}, SimulateOptions{}), config_error);
    options.rate = 1e-9;   // over nanoseconds in 64 bits
    CHECK_THROWS_AS(simulate(Config{}, steady(2, 1e3, 5, 2), options), config_error);
    Config config;
    config.model.max_context = 1;
    CHECK_THROWS_AS(simulate(config, trace, {}), config_error);
    config = Config{};
    config.device.memory_budget_mib = 12'000;   // less than the weights
    CHECK_THROWS_AS(simulate(config, trace, {}), config_error);
}

}  // namespace takt
