// Rounds of an engine's whole life, among them rounds whose device fails: memory in use, file descriptors and threads come back to
// where they were. Objects from `new` are counted here one by one; what the allocator holds beside them also depends on what it
// keeps for later, so that it only has to show buffers that were forgotten.
#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <takt/takt.h>

#include "catch.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TAKT_HAS_SANITIZER 1   // its own operators stay, and count too
#include <sanitizer/allocator_interface.h>
#endif
#endif

#ifndef TAKT_HAS_SANITIZER
namespace {

std::atomic<int64_t> live_bytes{0};

void* counted(void* memory) {
    if (memory == nullptr) throw std::bad_alloc();
    live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
    return memory;
}

void uncounted(void* memory) noexcept {
    if (memory != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
    std::free(memory);
}

}  // namespace

// The array and nothrow forms of the library call these.
void* operator new(std::size_t size) { return counted(std::malloc(size == 0 ? 1 : size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
    const auto unit = static_cast<std::size_t>(alignment);
    return counted(std::aligned_alloc(unit, (size + unit - 1) / unit * unit));
}
void operator delete(void* memory) noexcept { uncounted(memory); }
void operator delete(void* memory, std::size_t) noexcept { uncounted(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { uncounted(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { uncounted(memory); }
#endif

namespace {

using namespace takt;

struct Memory {
    int64_t objects = 0;     ///< bytes of what `new` gave
    int64_t allocator = 0;   ///< bytes that the allocator counts as in use, its caches included
};

Memory memory_in_use() {
#ifdef TAKT_HAS_SANITIZER
    const auto bytes = static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
    return {bytes, bytes};
#else
    const struct mallinfo2 info = mallinfo2();
    return {live_bytes, static_cast<int64_t>(info.uordblks + info.hblkhd)};
#endif
}

int num_entries(const char* folder) {
    DIR* directory = opendir(folder);
    REQUIRE(directory != nullptr);
    int count = 0;
    while (readdir(directory) != nullptr) ++count;
    closedir(directory);
    return count;
}

/// A joined thread may stand in /proc for a moment longer.
int num_threads_settled(int expected) {
    int count = num_entries("/proc/self/task");
    for (int i = 0; i < 200 && count > expected; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        count = num_entries("/proc/self/task");
    }
    return count;
}

/// Open descriptors. Pipes do not count under a sanitizer, which opens two to its symboliser when it has first something to look up, if
/// only to find it suppressed.
int num_descriptors() {
    DIR* directory = opendir("/proc/self/fd");
    REQUIRE(directory != nullptr);
    int count = 0;
    while ([[maybe_unused]] const dirent* entry = readdir(directory)) {
#ifdef TAKT_HAS_SANITIZER
        std::array<char, 64> target{};
        (void)readlinkat(dirfd(directory), entry->d_name, target.data(), target.size() - 1);
        if (std::string(target.data()).rfind("pipe:", 0) == 0) continue;
#endif
        ++count;
    }
    closedir(directory);
    return count;
}

struct Counts {
    Memory memory;
    int descriptors = 0;
    int threads = 0;
};

Counts counts(int expected_threads) {
    Counts c;
    c.threads = num_threads_settled(expected_threads);
    c.descriptors = num_descriptors();
    c.memory = memory_in_use();
    return c;
}

Request request_of(int index, int max_tokens) {
    Request r;
    r.prompt = std::string(static_cast<size_t>(10 + index * 17), static_cast<char>('a' + index % 20)) + " and so on";
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    r.sampling.temperature = index % 2 == 0 ? 0.0 : 0.8;
    r.sampling.presence_penalty = index % 3 == 0 ? 0.5 : 0.0;
    r.sampling.logprobs = index % 4 == 0 ? std::optional<int32_t>(2) : std::nullopt;
    return r;
}

struct RoundResult {
    int num_whole = 0;    ///< replies that came to their end
    int num_lost = 0;     ///< replies that ended with device_lost
};

/// Load, requests of all kinds (read, dropped, cancelled), drain, destroy.
RoundResult run_round(const std::vector<std::string>& set, int num_requests, int num_tokens) {
    RoundResult result;
    boost::asio::io_context io;
    auto work = boost::asio::make_work_guard(io);
    std::thread thread([&] { io.run(); });
    {
        Engine engine = Engine::async_load(io.get_executor(), load_config("", set), boost::asio::use_future).get();
        std::vector<std::future<Reply>> submitted;
        for (int i = 0; i < num_requests; ++i) {
            submitted.push_back(engine.async_submit(request_of(i, num_tokens), boost::asio::use_future));
        }
        for (int i = 0; i < num_requests; ++i) {
            try {
                Reply reply = submitted[static_cast<size_t>(i)].get();
                if (i % 5 == 3) continue;   // dropped unread
                if (i % 5 == 4) reply.cancel();
                while (reply.async_next(boost::asio::use_future).get()) {
                }
                ++result.num_whole;
            } catch (const boost::system::system_error& error) {
                CHECK(error.code() == make_error_code(errc::device_lost));
                ++result.num_lost;
            }
        }
        engine.async_drain(std::chrono::steady_clock::time_point::max(), boost::asio::use_future).get();
    }
    work.reset();
    thread.join();
    return result;
}

// What the libraries keep once (an error category's text, a thread's slot); a request forgotten in each round would be more.
constexpr int64_t kSlackBytes = 1024;

/// `rounds` more rounds after a warm-up: nothing may have grown.
template <class Round>
void check_rounds_leave_nothing(int rounds, Round&& round) {
    for (int i = 0; i < 3; ++i) round(i);
    const Counts before = counts(num_entries("/proc/self/task"));
    for (int i = 0; i < rounds; ++i) round(i);
    const Counts after = counts(before.threads);
    CHECK(after.threads <= before.threads);   // one of the warm-up's may still have been leaving when they were first counted
    CHECK(after.descriptors == before.descriptors);
    INFO("allocator before " << before.memory.allocator << ", after " << after.memory.allocator);
    CHECK(after.memory.objects <= before.memory.objects + kSlackBytes);
    CHECK(after.memory.allocator <= before.memory.allocator + (int64_t{1} << 18));
}

}  // namespace

TEST_CASE("twenty lives of an engine over the sim device leave nothing behind") {
    check_rounds_leave_nothing(20, [](int i) {
        const RoundResult r = run_round({"device.kind=sim", "sim.scale=0", "scheduler.pipeline_depth=" + std::to_string(i % 2)}, 20, 30);
        CHECK(r.num_whole == 16);
    });
}

TEST_CASE("twenty lives that end with a failed device leave nothing behind") {
    // With this seed the random faults of the sim device strike at its 56th step.
    int num_lost = 0;
    check_rounds_leave_nothing(20, [&](int) {
        num_lost += run_round({"device.kind=sim", "sim.scale=0", "sim.faults=true", "sim.seed=29055"}, 20, 400).num_lost;
    });
    CHECK(num_lost >= 20);
}

TEST_CASE("lives that never came to be leave nothing behind") {
    check_rounds_leave_nothing(20, [](int) {
        boost::asio::io_context io;
        auto work = boost::asio::make_work_guard(io);
        std::thread thread([&] { io.run(); });
        Config config = load_config("", {"device.kind=cpu", "model.path=/nowhere/at/all.gguf"});
        CHECK_THROWS(Engine::async_load(io.get_executor(), config, boost::asio::use_future).get());
        Config small = load_config("", {"device.kind=sim", "device.memory_budget_mib=1", "model.max_context=131072",
                                        "scheduler.max_running=1024"});
        CHECK_THROWS(Engine::async_load(io.get_executor(), small, boost::asio::use_future).get());
        work.reset();
        thread.join();
    });
}

TEST_CASE("lives of an engine over the CPU device and a real model leave nothing behind") {
    const std::string path = std::string(TAKT_SOURCE_ROOT) + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path)) {
        WARN("skipped: no model in models/");
        return;
    }
    check_rounds_leave_nothing(3, [&](int) {
        const RoundResult r = run_round({"device.kind=cpu", "model.path=" + path, "model.max_context=512"}, 5, 3);
        CHECK(r.num_whole == 4);
    });
}

TEST_CASE("twenty lives over the CPU device and a real model leave nothing behind", "[.long]") {
    const std::string path = std::string(TAKT_SOURCE_ROOT) + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path)) {
        WARN("skipped: no model in models/");
        return;
    }
    check_rounds_leave_nothing(20, [&](int i) {
        const std::string threads = "device.threads=" + std::to_string(1 + i % 2);
        const RoundResult r = run_round({"device.kind=cpu", "model.path=" + path, "model.max_context=512", threads}, 5, 3);
        CHECK(r.num_whole == 4);
    });
}
