// A row's bits depend on its own tokens and the model alone: the same requests alone and in company, in chunks of any length, on
// one thread and two, at both pipeline depths, preempted, over cached prefixes and beside requests that are cancelled give the same
// tokens and log-probabilities, to the bit, in every arithmetic and type of KV, with windows and soft caps. On synthetic models, and on
// the real one where it is there.
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <bit>
#include <fstream>
#include <random>
#include <thread>

#include <takt/takt.h>

#include "catch.h"
#include "model/synthetic_gguf.h"
#include "temporary_folder.h"

namespace {

using namespace takt;

class Host {
public:
    explicit Host(const std::vector<std::string>& set) {
        engine = Engine::async_load(io.get_executor(), load_config("", set), boost::asio::use_future).get();
    }
    ~Host() {
        engine = Engine();
        work.reset();
        thread.join();
    }
    double metric(const std::string& name) const {
        for (const SeriesSnapshot& s : engine.metrics().series) {
            if (s.name == name) return s.values.front().value;
        }
        return -1;
    }

    boost::asio::io_context io;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
    std::thread thread{[this] { io.run(); }};
    Engine engine;
};

/// All that must be equal: tokens, and the bits of every log-probability.
struct Answer {
    std::vector<uint64_t> bits;
    int64_t cached_tokens = 0;
    int64_t preemptions = 0;
};

Answer finish(Reply& reply) {
    Answer answer;
    while (auto chunk = reply.async_next(boost::asio::use_future).get()) {
        for (const TokenLogprob& t : chunk->logprobs) {
            answer.bits.push_back(static_cast<uint64_t>(t.token));
            answer.bits.push_back(std::bit_cast<uint64_t>(t.logprob));
            for (const TokenLogprob::Top& top : t.top) {
                answer.bits.push_back(static_cast<uint64_t>(top.token));
                answer.bits.push_back(std::bit_cast<uint64_t>(top.logprob));
            }
        }
    }
    answer.cached_tokens = reply.result()->usage.cached_tokens;
    answer.preemptions = reply.result()->timings.preemptions;
    return answer;
}

/// Requests of mixed lengths and sampling; some share long beginnings.
std::vector<Request> random_requests(int count, int32_t vocab, int longest, int new_tokens, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int32_t> shared;
    for (int i = 0; i < longest; ++i) shared.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
    std::vector<Request> all;
    for (int i = 0; i < count; ++i) {
        Request r;
        const auto length = 1 + random() % static_cast<uint64_t>(longest);
        r.tokens.emplace(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(i % 3 == 0 ? length * 3 / 4 : 0));
        while (r.tokens->size() < length) r.tokens->push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
        r.max_tokens = 1 + static_cast<int32_t>(random() % static_cast<uint64_t>(new_tokens));
        r.ignore_eos = true;
        r.sampling.seed = random();
        r.sampling.logprobs = static_cast<int32_t>(random() % 4);
        r.sampling.temperature = i % 2 == 0 ? 0.0 : 0.9;
        if (i % 4 == 1) r.sampling.top_p = 0.9;
        if (i % 4 == 3) {
            r.sampling.top_k = 20;
            r.sampling.repetition_penalty = 1.3;
            r.sampling.frequency_penalty = 0.5;
        }
        all.push_back(std::move(r));
    }
    return all;
}

std::vector<Answer> run_alone(Host& host, const std::vector<Request>& requests) {
    std::vector<Answer> answers;
    for (const Request& r : requests) {
        Reply reply = host.engine.async_submit(r, boost::asio::use_future).get();
        answers.push_back(finish(reply));
    }
    return answers;
}

/// All at once, in a random order.
std::vector<Answer> run_together(Host& host, const std::vector<Request>& requests, uint64_t seed) {
    std::vector<size_t> order;
    for (size_t i = 0; i < requests.size(); ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    std::vector<Reply> replies(requests.size());
    std::vector<std::future<Reply>> submitted(requests.size());
    for (const size_t i : order) submitted[i] = host.engine.async_submit(requests[i], boost::asio::use_future);
    for (size_t i = 0; i < requests.size(); ++i) replies[i] = submitted[i].get();
    std::vector<Answer> answers;
    for (Reply& reply : replies) answers.push_back(finish(reply));
    return answers;
}

/// All at once, among twice as many others that are given up after their first pieces.
std::vector<Answer> run_among_cancelled(Host& host, const std::vector<Request>& requests, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Reply> replies, others;
    std::vector<std::future<Reply>> submitted, submitted_others;
    for (const Request& r : requests) {
        for (int i = 0; i < 2; ++i) {
            Request other = requests[random() % requests.size()];   // shares its blocks where prefixes are cached
            other.max_tokens = 100;
            submitted_others.push_back(host.engine.async_submit(other, boost::asio::use_future));
        }
        submitted.push_back(host.engine.async_submit(r, boost::asio::use_future));
    }
    for (auto& s : submitted_others) others.push_back(s.get());
    for (auto& s : submitted) replies.push_back(s.get());
    std::vector<Answer> answers;
    for (size_t i = 0; i < replies.size(); ++i) {
        for (size_t k = 2 * i; k < 2 * i + 2; ++k) {
            if (k % 3 != 0) (void)others[k].async_next(boost::asio::use_future).get();   // the third ones: wherever they stand
            others[k].cancel();
        }
        answers.push_back(finish(replies[i]));
    }
    for (Reply& other : others) {
        while (other.async_next(boost::asio::use_future).get()) {
        }
    }
    return answers;
}

void compare(const std::vector<Answer>& found, const std::vector<Answer>& expected) {
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
        const auto [at, end] = std::mismatch(found[i].bits.begin(), found[i].bits.end(), expected[i].bits.begin(), expected[i].bits.end());
        INFO("request " << i << ", first difference at word " << at - found[i].bits.begin() << " of " << found[i].bits.size());
        CHECK((found[i].bits == expected[i].bits));
    }
}

struct Subject {
    std::string path, activations;
    int32_t vocab = 0, context = 0;
    int num_requests = 0, longest = 0, new_tokens = 0;
    std::string kv_dtype = "auto";
};

std::vector<std::string> settings(const Subject& s, const std::vector<std::string>& more) {
    std::vector<std::string> set{"device.kind=cpu", "model.path=" + s.path, "device.activations=" + s.activations,
                                 "kv.dtype=" + s.kv_dtype, "model.max_context=" + std::to_string(s.context), "scheduler.max_running=16"};
    set.insert(set.end(), more.begin(), more.end());
    return set;
}

/// A budget in which about `contexts` full contexts fit.
std::string tight_budget(const Subject& s, double contexts) {
    const MemoryPlan plan = plan_memory(load_config("", settings(s, {"device.memory_budget_mib=4096"})));
    const double per_context = static_cast<double>(plan.block_bytes) * s.context / static_cast<double>(plan.block_tokens);
    const double bytes = static_cast<double>(plan.total() - plan.kv) + contexts * per_context;
    return "device.memory_budget_mib=" + std::to_string(static_cast<int64_t>(bytes / (1 << 20)) + 1);
}

/// Returns how often somebody was preempted in too little memory.
double check(const Subject& subject, uint64_t seed) {
    INFO(subject.activations << ", KV " << subject.kv_dtype << ", seed " << seed);
    const auto requests = random_requests(subject.num_requests, subject.vocab, subject.longest, subject.new_tokens, seed);
    std::vector<Answer> alone;
    {
        Host host(settings(subject, {"device.threads=1", "scheduler.pipeline_depth=0", "kv.prefix_cache=false", "device.graphs=false"}));
        alone = run_alone(host, requests);
    }
    {
        INFO("together, two threads, depth 1");
        Host host(settings(subject, {"device.threads=2", "scheduler.pipeline_depth=1", "kv.prefix_cache=false"}));
        compare(run_together(host, requests, seed), alone);
    }
    for (const int chunk : {7, 48}) {
        INFO("together, chunks of " << chunk << " and cached prefixes");
        Host host(settings(subject, {"device.threads=2", "scheduler.pipeline_depth=" + std::to_string(chunk % 2),
                                     "scheduler.policy=fixed-chunk", "scheduler.fixed_chunk_tokens=" + std::to_string(chunk)}));
        compare(run_together(host, requests, seed + 1), alone);
        const std::vector<Answer> again = run_together(host, requests, seed + 2);
        compare(again, alone);
        int64_t cached = 0;
        for (const Answer& a : again) cached += a.cached_tokens;
        CHECK(cached > 0);
        INFO("among requests that are cancelled");
        compare(run_among_cancelled(host, requests, seed + 4), alone);
    }
    {
        INFO("together in too little memory");
        const std::string budget = tight_budget(subject, 1.1);
        Host host(settings(subject, {"device.threads=1", "scheduler.pipeline_depth=1", "kv.prefix_cache=false", budget}));
        const std::vector<Answer> squeezed = run_together(host, requests, seed + 3);
        compare(squeezed, alone);
        return host.metric("takt_preemptions_total");   // how often it comes to that is the scheduler's affair
    }
}

/// Prompt tokens count for a repetition penalty in whatever pieces they come, also in steps that sample nothing.
void check_penalties(const Subject& subject) {
    std::vector<Request> requests = random_requests(4, subject.vocab, subject.longest, subject.new_tokens, 77);
    for (Request& r : requests) {
        while (r.tokens->size() < 90) r.tokens->push_back(static_cast<int32_t>(r.tokens->size()));
        r.sampling.repetition_penalty = 1.8;
        r.sampling.presence_penalty = 0.5;
        r.sampling.temperature = 0;
    }
    Host whole(settings(subject, {"scheduler.policy=fixed-chunk", "scheduler.fixed_chunk_tokens=512"}));
    Host pieces(settings(subject, {"scheduler.policy=fixed-chunk", "scheduler.fixed_chunk_tokens=16"}));
    compare(run_alone(pieces, requests), run_alone(whole, requests));
}

/// Few weights and much KV, so that memory in whole MiB can be short.
test::SyntheticShape shape() {
    test::SyntheticShape s;
    s.layers = 2;
    s.heads = 8;
    s.kv_heads = 4;
    s.head_dim = 128;
    s.context = 512;
    return s;
}

/// `device.activations` and `kv.dtype`; the first three are those that a windowed model is tried in.
constexpr std::pair<const char*, const char*> kModes[] = {
    {"int16", "int8"}, {"auto", "auto"}, {"float32", "auto"}, {"int8", "auto"}, {"int8", "int8"}, {"bf16", "bf16"}, {"int16", "f32"},
};

}  // namespace

TEST_CASE("synthetic model: the same bits however a request is run") {
    const test::TemporaryFolder folder;
    const std::string path = folder.write("model.gguf", test::synthetic_gguf(test::SyntheticModel(shape())));
    for (const auto& [activations, kv] : kModes) {
        // How often it comes to a preemption is the scheduler's affair, but once it must.
        CHECK(check({path, activations, test::kSyntheticTokens, 256, 14, 130, 120, kv}, 1) > 0);
    }
    check_penalties({path, "int16", test::kSyntheticTokens, 256, 0, 100, 20});
}

TEST_CASE("windows and soft caps: the same bits however a request is run") {
    for (const char* architecture : {"gemma2", "gemma3"}) {
        test::SyntheticShape s = shape();
        s.architecture = architecture;
        s.window = 40;
        s.tied = true;
        s.attention_cap = s.architecture == "gemma2" ? 3 : 0;
        s.logit_cap = s.architecture == "gemma2" ? 5 : 0;
        const test::TemporaryFolder folder;
        const std::string path = folder.write("model.gguf", test::synthetic_gguf(test::SyntheticModel(s)));
        INFO(architecture);
        for (const auto& [activations, kv] : kModes) {
            check({path, activations, test::kSyntheticTokens, 256, 8, 130, 60, kv}, 3);
            if (activations == std::string("float32")) break;
        }
    }
}

TEST_CASE("synthetic model: the same bits over many seeds", "[.long]") {
    double num_preempted = 0;
    for (uint64_t seed = 2; seed < 22; ++seed) {
        test::SyntheticShape s = shape();
        s.seed = seed;
        s.architecture = seed % 3 == 0 ? "qwen2" : seed % 3 == 1 ? "qwen3" : "llama";
        s.matrices = seed % 2 == 0 ? DType::q8_0 : DType::q4_0;
        const test::TemporaryFolder folder;
        const std::string path = folder.write("model.gguf", test::synthetic_gguf(test::SyntheticModel(s)));
        num_preempted += check({path, seed % 2 == 0 ? "float32" : "int16", test::kSyntheticTokens, 512, 24, 300, 150,
                                seed % 4 == 1 ? "int8" : "auto"}, seed);
    }
    CHECK(num_preempted > 0);
}

TEST_CASE("SmolLM2: the same bits however a request is run", "[.long]") {
    const std::string path = std::string(TAKT_SOURCE_ROOT) + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::ifstream(path)) {
        WARN("skipped: the model is absent");
        return;
    }
    check({path, "int16", 49152, 1024, 16, 600, 200}, 5);
    check({path, "float32", 49152, 512, 6, 200, 60}, 6);
    check({path, "int16", 49152, 512, 8, 300, 100, "int8"}, 7);
}
