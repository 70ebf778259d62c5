// The library over the sim device: streams, equality of pipeline depths, cancellation, refusals, several engines. The text of the
// sim device is a chained hash of the tokens before it, so a paging or mixing error would be a wrong text.
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <takt/takt.h>

#include "catch.h"
#include "temporary_folder.h"

namespace {

using namespace takt;

class Host {
public:
    explicit Host(int depth = 1, const std::vector<std::string>& more = {}) {
        std::vector<std::string> set{"device.kind=sim", "sim.scale=0", "scheduler.pipeline_depth=" + std::to_string(depth)};
        set.insert(set.end(), more.begin(), more.end());
        engine = Engine::async_load(io.get_executor(), load_config("", set), boost::asio::use_future).get();
    }
    ~Host() {
        engine = Engine();
        work.reset();
        thread.join();
    }
    std::string run(Request request, RequestResult* result = nullptr) {
        Reply reply = engine.async_submit(std::move(request), boost::asio::use_future).get();
        std::string text;
        while (auto chunk = reply.async_next(boost::asio::use_future).get()) text += chunk->text;
        if (result != nullptr) *result = reply.result().value();
        return text;
    }
    /// Blocks go back once the last launched step that names them is over: a little after the answer's end.
    bool all_blocks_come_back() {
        for (int i = 0; i < 500 && metric("takt_kv_blocks_used") != 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return metric("takt_kv_blocks_used") == 0;
    }
    double metric(const std::string& name) {
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

Request prompt_of(const std::string& text, int max_tokens) {
    Request r;
    r.prompt = text;
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    return r;
}

}  // namespace

TEST_CASE("an answer has as many tokens as were asked for and its books are right") {
    Host host;
    RequestResult result;
    const std::string text = host.run(prompt_of("hello, beat", 40), &result);
    CHECK(text.size() == 40);
    CHECK(result.reason == FinishReason::length);
    CHECK(result.usage.prompt_tokens == 11);
    CHECK(result.usage.completion_tokens == 40);
    CHECK(host.metric("takt_requests_accepted_total") == 1);
    CHECK(host.all_blocks_come_back());
}

TEST_CASE("depth 0 and depth 1, alone and in company, give the same text") {
    Host one(1);
    Host zero(0, {"device.graphs=false"});
    const std::string alone = zero.run(prompt_of(std::string(300, 'x') + "tail", 64));
    std::vector<std::future<Reply>> others;
    for (int i = 0; i < 20; ++i) {
        const std::string text(static_cast<size_t>(i * 37 + 1), 'y');
        others.push_back(one.engine.async_submit(prompt_of(text, 50), boost::asio::use_future));
    }
    CHECK(one.run(prompt_of(std::string(300, 'x') + "tail", 64)) == alone);
    // Again, now with its prefix in the cache.
    CHECK(one.run(prompt_of(std::string(300, 'x') + "tail", 64)) == alone);
    for (auto& other : others) {
        Reply reply = other.get();
        while (reply.async_next(boost::asio::use_future).get()) {
        }
        CHECK(reply.result()->reason == FinishReason::length);
    }
}

TEST_CASE("each way of waiting for the device gives the same text") {
    Host still(0);
    const std::string text = still.run(prompt_of("wait for it", 60));
    for (const char* wait : {"predict", "spin", "block"}) {
        for (const int depth : {0, 1}) {
            Host host(depth, {std::string("device.wait=") + wait, "sim.scale=0.2"});
            INFO(wait << ", depth " << depth);
            CHECK(host.run(prompt_of("wait for it", 60)) == text);
            Reply cut = host.engine.async_submit(prompt_of("a long one", 100000), boost::asio::use_future).get();
            (void)cut.async_next(boost::asio::use_future).get();
            cut.cancel();   // it is heard while a step is waited for
            while (cut.async_next(boost::asio::use_future).get()) {
            }
            CHECK(cut.result()->reason == FinishReason::cancelled);
        }
    }
}

TEST_CASE("an engine that has become idle proves its books") {
    std::atomic<int> num_sound{0}, num_wrong{0};
    boost::asio::io_context io;
    auto work = boost::asio::make_work_guard(io);
    std::thread thread([&] { io.run(); });
    Config config = load_config("", {"device.kind=sim", "sim.scale=0"});
    config.log = [&](const LogRecord& record) {
        num_sound += record.message == "books sound" ? 1 : 0;
        num_wrong += record.message.find("books wrong") == 0 ? 1 : 0;
    };
    {
        Engine engine = Engine::async_load(io.get_executor(), config, boost::asio::use_future).get();
        for (int round = 1; round <= 2; ++round) {   // the second is due a second after the first
            Reply reply = engine.async_submit(prompt_of("books", 5), boost::asio::use_future).get();
            while (reply.async_next(boost::asio::use_future).get()) {
            }
            for (int i = 0; i < 400 && num_sound < round; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
            CHECK(num_sound >= round);
        }
    }
    CHECK(num_wrong == 0);
    work.reset();
    thread.join();
}

TEST_CASE("a squeezed pool preempts and resumes without a change in any text") {
    Host roomy(1);
    Host tight(1, {"model.max_context=32768", "scheduler.max_running=8", "device.memory_budget_mib=1", "kv.prefix_cache=false"});
    std::vector<std::future<Reply>> replies;
    for (int i = 0; i < 8; ++i) {
        const std::string text(3000, static_cast<char>('a' + i));
        replies.push_back(tight.engine.async_submit(prompt_of(text, 3000), boost::asio::use_future));
    }
    for (int i = 0; i < 8; ++i) {
        Reply reply = replies[static_cast<size_t>(i)].get();
        std::string text;
        while (auto chunk = reply.async_next(boost::asio::use_future).get()) text += chunk->text;
        CHECK(text == roomy.run(prompt_of(std::string(3000, static_cast<char>('a' + i)), 3000)));
    }
    CHECK(tight.all_blocks_come_back());
    CHECK(tight.metric("takt_preemptions_total") > 0);
}

TEST_CASE("cancelled and abandoned requests give everything back") {
    Host host(1, {"sim.scale=0.2"});
    for (int i = 0; i < 30; ++i) {
        Reply reply = host.engine.async_submit(prompt_of("cancel me", 100000), boost::asio::use_future).get();
        if (i % 3 == 0) (void)reply.async_next(boost::asio::use_future).get();
        if (i % 2 == 0) {
            reply.cancel();
            while (reply.async_next(boost::asio::use_future).get()) {
            }
            CHECK(reply.result()->reason == FinishReason::cancelled);
        }
    }
    CHECK(host.run(prompt_of("still well", 5)).size() == 5);
    CHECK(host.all_blocks_come_back());
    CHECK(host.metric("takt_requests_running") == 0);
}

TEST_CASE("refusals name what is wrong and disturb nothing") {
    Host host(1, {"model.max_context=64"});
    auto refused = [&](Request request) {
        auto why = std::make_shared<Refusal>();
        try {
            (void)host.engine.async_submit(std::move(request), why, boost::asio::use_future).get();
        } catch (const boost::system::system_error& error) {
            return error_info(static_cast<errc>(error.code().value())).code.data() + (": " + why->message);
        }
        return std::string("accepted");
    };
    CHECK(refused(prompt_of(std::string(100, 'x'), 5)).find("context_too_long: the prompt has 100 tokens, the context holds 64") == 0);
    CHECK(refused(Request{}).find("bad_request") == 0);
    Request outside = prompt_of("x", 5);
    outside.sampling.logit_bias[100000] = 1;
    CHECK(refused(outside).find("bad_request: logit_bias: id 100000") == 0);
    Request late = prompt_of("x", 5);
    late.sla_class = "gold";
    CHECK(refused(late).find("class: found \"") != std::string::npos);
    CHECK(host.run(prompt_of("fine", 3)).size() == 3);
}

TEST_CASE("draining refuses new requests and ends when the last has left") {
    Host host;
    CHECK(host.run(prompt_of("x", 3)).size() == 3);
    host.engine.async_drain(std::chrono::steady_clock::time_point::max(), boost::asio::use_future).get();
    CHECK_THROWS_AS(host.engine.async_submit(prompt_of("x", 3), boost::asio::use_future).get(), boost::system::system_error);
    CHECK(host.engine.health().draining);
}

TEST_CASE("engines come and go") {
    for (int i = 0; i < 20; ++i) {
        Host host(i % 2);
        CHECK(host.run(prompt_of("round", 8)).size() == 8);
    }
}

TEST_CASE("a request ends at its own deadline, wherever it stands, and the others go on") {
    Host host(1, {"scheduler.max_running=1", "sim.scale=1"});
    Reply runs = host.engine.async_submit(prompt_of("long", 400), boost::asio::use_future).get();
    Request waits = prompt_of("behind", 5);
    waits.deadline_ms = 50;
    Reply late = host.engine.async_submit(waits, boost::asio::use_future).get();
    try {
        while (late.async_next(boost::asio::use_future).get()) {
        }
        FAIL("the deadline was not seen");
    } catch (const boost::system::system_error& error) {
        CHECK(error.code() == make_error_code(errc::deadline_exceeded));
    }
    Request easy = prompt_of("in time", 5);
    easy.deadline_ms = 1e9;
    runs.cancel();
    CHECK(host.run(easy).size() == 5);
}

TEST_CASE("late milliseconds by cause add up to those of the recorded steps") {
    Host host(1, {"sim.scale=0.2"});
    Request request = prompt_of("x", 20);
    request.itl_ms = 0.001;   // that no step keeps
    host.run(request);
    REQUIRE(host.all_blocks_come_back());
    double by_cause = 0, by_step = 0;
    for (const SeriesSnapshot& s : host.engine.metrics().series) {
        if (s.name != "takt_late_milliseconds_total") continue;
        for (const auto& value : s.values) by_cause += value.value;
    }
    for (const StepRecord& step : host.engine.recorder()) by_step += step.late_ms;
    CHECK(by_cause > 10);   // 19 gaps of a millisecond and more
    CHECK(by_cause == Approx(by_step).epsilon(1e-6));
}

TEST_CASE("what an engine learned of its device's step times is there at the next start") {
    const test::TemporaryFolder folder;
    const std::string path = folder.file("costs");
    {
        Host host(1, {"scheduler.profile_cache=" + path, "sim.scale=0.01"});
        RequestResult result;
        host.run(prompt_of(std::string(500, 'x'), 200), &result);
        CHECK(result.usage.completion_tokens == 200);   // a token may have no text
        CHECK_FALSE(std::filesystem::exists(path));   // kept when the engine ends
    }
    REQUIRE(std::filesystem::exists(path));
    const auto size = std::filesystem::file_size(path);
    {
        Host host(1, {"scheduler.profile_cache=" + path, "sim.scale=0.01"});
        CHECK(host.run(prompt_of("y", 3)).size() == 3);   // too few steps to be worth keeping
    }
    CHECK(std::filesystem::file_size(path) == size);
    // A table that is far off is found out by a few steps at start: here each shape takes a second.
    std::ifstream in(path);
    std::ostringstream poisoned;
    for (std::string line; std::getline(in, line);) {
        std::istringstream fields(line);
        int64_t rows = 0, count = 0;
        double ns = 0;
        const bool is_shape = static_cast<bool>(fields >> rows >> ns >> count) && fields.eof() && ns > 1000;
        poisoned << (is_shape ? std::to_string(rows) + " 1e9 " + std::to_string(count) : line) << '\n';
    }
    in.close();
    std::ofstream(path) << poisoned.str();
    Host host(1, {"scheduler.profile_cache=" + path, "sim.scale=0.01"});
    CHECK(host.run(prompt_of("z", 3)).size() == 3);
    const std::vector<StepRecord> steps = host.engine.recorder();
    REQUIRE(!steps.empty());
    CHECK(steps.front().predicted_ms < 500);
}
