// SmolLM2 through the whole engine (without it: tests/model/truth_test.cpp) against float32 transformers
// (../shared/truth/smollm2.jsonl): free-running equality with float32 arithmetic, teacher-forced equality with the default 16-bit
// one. Skipped where the model or the truth is absent.
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <takt/takt.h>

#include "catch.h"

namespace {

using namespace takt;

struct Prompt {
    std::vector<int32_t> ids, greedy;
    std::vector<double> margins, logprobs;
};

std::vector<Prompt> read_truth(size_t most) {
    std::vector<Prompt> all;
    std::ifstream in(std::string(TAKT_SOURCE_ROOT) + "/../shared/truth/smollm2.jsonl");
    for (std::string line; std::getline(in, line) && all.size() < most;) {
        const boost::json::object row = boost::json::parse(line).as_object();
        Prompt p;
        for (const auto& v : row.at("prompt_ids").as_array()) p.ids.push_back(static_cast<int32_t>(v.as_int64()));
        for (const auto& v : row.at("f32_ids").as_array()) p.greedy.push_back(static_cast<int32_t>(v.as_int64()));
        for (const auto& v : row.at("f32_margins").as_array()) p.margins.push_back(v.to_number<double>());
        for (const auto& v : row.at("f32_logprobs").as_array()) p.logprobs.push_back(v.to_number<double>());
        if (p.ids.size() < 700) all.push_back(std::move(p));   // long prompts take most of the time and prove no more
    }
    return all;
}

std::string model_path() { return std::string(TAKT_SOURCE_ROOT) + "/models/SmolLM2-135M-Instruct.Q4_1.gguf"; }

class Host {
public:
    explicit Host(const std::string& activations) {
        const std::vector<std::string> set{"device.kind=cpu", "model.path=" + model_path(), "device.activations=" + activations,
                                           "model.max_context=2048"};
        engine = Engine::async_load(io.get_executor(), load_config("", set), boost::asio::use_future).get();
    }
    ~Host() {
        engine = Engine();
        work.reset();
        thread.join();
    }
    /// Greedy tokens with the chosen one's log-probability.
    std::vector<TokenLogprob> run(std::vector<int32_t> tokens, int count) {
        Request r;
        r.tokens = std::move(tokens);
        r.max_tokens = count;
        r.ignore_eos = true;
        r.sampling.temperature = 0;
        r.sampling.logprobs = 0;
        Reply reply = engine.async_submit(std::move(r), boost::asio::use_future).get();
        std::vector<TokenLogprob> out;
        while (auto chunk = reply.async_next(boost::asio::use_future).get()) {
            out.insert(out.end(), chunk->logprobs.begin(), chunk->logprobs.end());
        }
        return out;
    }

private:
    boost::asio::io_context io;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
    std::thread thread{[this] { io.run(); }};
    Engine engine;
};

bool available(const std::vector<Prompt>& truth) {
    if (!truth.empty() && std::ifstream(model_path())) return true;
    WARN("skipped: the model or ../shared/truth is absent");
    return false;
}

void check_float32(const std::vector<Prompt>& truth) {
    Host host("float32");
    for (const Prompt& p : truth) {
        const auto out = host.run(p.ids, static_cast<int>(p.greedy.size()));
        REQUIRE(out.size() == p.greedy.size());
        for (size_t i = 0; i < out.size(); ++i) {
            if (out[i].token != p.greedy[i]) {
                CHECK(p.margins[i] < 0.001);   // either way is right; nothing after it compares
                break;
            }
            CHECK(std::abs(out[i].logprob - p.logprobs[i]) < 0.001);
        }
    }
}

void check_int16(const std::vector<Prompt>& truth) {
    Host host("auto");
    int num_flips = 0;
    double worst = 0;
    for (const Prompt& p : truth) {
        std::vector<int32_t> fed = p.ids;
        for (size_t i = 0; i < p.greedy.size(); ++i) {
            const auto out = host.run(fed, 1);   // the prefix cache makes each step cheap
            REQUIRE(out.size() == 1);
            if (out[0].token != p.greedy[i]) {
                ++num_flips;
                CHECK(p.margins[i] < 0.01);
            } else {
                worst = std::max(worst, std::abs(out[0].logprob - p.logprobs[i]));
            }
            fed.push_back(p.greedy[i]);
        }
    }
    INFO("flips " << num_flips << ", largest log-probability difference " << worst);
    CHECK(num_flips <= 3);
    CHECK(worst < 0.02);
    WARN("int16: " << num_flips << " flips in " << truth.size() * 48 << " steps, largest difference " << worst);
}

}  // namespace

TEST_CASE("float32 arithmetic gives the tokens of float32 transformers") {
    const auto truth = read_truth(1);
    if (available(truth)) check_float32(truth);
}

TEST_CASE("16-bit arithmetic keeps the argmax of float32 transformers") {
    const auto truth = read_truth(3);
    if (available(truth)) check_int16(truth);
}

TEST_CASE("all prompts, both arithmetics", "[.long]") {
    const auto truth = read_truth(100);
    if (!available(truth)) return;
    check_float32(truth);
    check_int16(truth);
}
