// The crowd decision, fed with jobs of an imagined machine: it must find the faster way, stay with it, come back when the crowd has
// gone, and leave an undisturbed device alone.
#include <random>

#include "catch.h"
#include "kernels/cpu/crowding.h"

using namespace takt::cpu;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

/// What jobs take, and how many of them are kept off their core for most of it.
struct Machine {
    double all_ms, single_ms;
    double disturbed_share = 0;
    double noise = 0;   // of a job's time, uniform
    double off_core = 0.75;   // of a disturbed job's time
    double contended = 1;     // of that: some thread stood ready without a core
};

struct Tally {
    uint64_t elapsed_ns = 0;
    int jobs = 0, single = 0;
    [[nodiscard]] double ms_per_job() const { return static_cast<double>(elapsed_ns) / 1e6 / jobs; }
    [[nodiscard]] double single_share() const { return static_cast<double>(single) / jobs; }
};

/// Runs jobs for `duration_ns` of their own time.
Tally run(Crowding& crowding, const Machine& machine, uint64_t duration_ns, int32_t rows = 1, uint32_t seed = 1) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> unit(0, 1);
    Tally tally;
    while (tally.elapsed_ns < duration_ns) {
        const bool single = crowding.single(rows);
        const double ms = (single ? machine.single_ms : machine.all_ms) * (1 + machine.noise * (2 * unit(random) - 1));
        const auto ns = static_cast<uint64_t>(ms * 1e6);
        const double off_ms = unit(random) < machine.disturbed_share ? ms * machine.off_core : 0;
        crowding.observe({rows, single, ns, static_cast<uint64_t>(off_ms * 1e6), static_cast<uint64_t>(off_ms * machine.contended * 1e6)});
        tally.elapsed_ns += ns;
        ++tally.jobs;
        tally.single += single ? 1 : 0;
    }
    return tally;
}

}  // namespace

TEST_CASE("without a crowd no job gives up a thread") {
    Crowding crowding;
    // Even where one thread would be faster: nobody asked.
    CHECK(run(crowding, {2.5, 2.0}, 20 * kSecond).single == 0);
    // A daemon's burst: one job in fifty is held up.
    CHECK(run(crowding, {2.5, 3.0, 0.02, 0.1}, 20 * kSecond).single_share() < 0.01);
    // The host of a virtual machine keeps every job waiting for a third of its time; a process begins with its pages coming in.
    CHECK(run(crowding, {2.5, 2.0, 1.0, 0.1, 0.33}, 20 * kSecond).single == 0);
    run(crowding, {12.0, 2.0, 1.0, 0.1, 0.55}, kSecond / 10);
    CHECK(run(crowding, {2.5, 2.0, 1.0, 0.1, 0.3}, 20 * kSecond).single == 0);
}

TEST_CASE("a partner that has more to do is no crowd") {
    // Deep in a document thread 0 sleeps half of each job while the other one reads K and V; nobody stands ready without a core.
    Crowding crowding;
    CHECK(run(crowding, {8.0, 15.0, 1.0, 0.1, 0.5, 0.04}, 20 * kSecond).single == 0);
    CHECK(run(crowding, {8.0, 7.0, 1.0, 0.1, 0.9, 0.0}, 20 * kSecond).single == 0);
    // The same beside a busy process: each thread has to wait for its core again and again.
    const Machine beside{16.0, 15.0, 0.9, 0.1, 0.6, 0.6};
    run(crowding, beside, kSecond);
    CHECK(run(crowding, beside, 5 * kSecond).single_share() > 0.8);
}

TEST_CASE("in a crowd that holds partners up, jobs go to one thread and stay about as fast as there") {
    for (const uint32_t seed : {1u, 2u, 3u, 4u, 5u}) {
        Crowding crowding;
        const Machine machine{7.6, 5.8, 0.7, 0.5};
        run(crowding, machine, kSecond, 1, seed);
        const Tally later = run(crowding, machine, 20 * kSecond, 1, seed + 100);
        CHECK(later.single_share() > 0.9);
        CHECK(later.ms_per_job() < 5.8 * 1.04);
    }
}

TEST_CASE("in a crowd that all threads bear better, they go on") {
    for (const uint32_t seed : {1u, 2u, 3u, 4u, 5u}) {
        Crowding crowding;
        const Machine machine{5.0, 8.0, 0.7, 0.5};
        run(crowding, machine, kSecond, 1, seed);
        const Tally later = run(crowding, machine, 20 * kSecond, 1, seed + 100);
        CHECK(later.single_share() < 0.1);
        CHECK(later.ms_per_job() < 5.0 * 1.04);
    }
}

TEST_CASE("all threads are back soon after the crowd has gone") {
    Crowding crowding;
    run(crowding, {7.6, 5.8, 0.7}, 30 * kSecond);
    CHECK(crowding.single(1));
    run(crowding, {2.5, 3.0}, kSecond / 2);
    CHECK(run(crowding, {2.5, 3.0}, 10 * kSecond).single == 0);
}

TEST_CASE("numbers of rows are judged apart, and steps of many rows never reduced") {
    Crowding crowding;
    run(crowding, {7.6, 5.8, 0.7}, 5 * kSecond, 1);
    CHECK(run(crowding, {7.6, 5.8, 0.7}, 5 * kSecond, 1).single_share() > 0.9);
    CHECK_FALSE(crowding.single(2));
    run(crowding, {20, 30, 0.9}, 5 * kSecond, 8);
    CHECK_FALSE(crowding.single(8));
    CHECK(run(crowding, {20, 10, 1.0}, 20 * kSecond, 65).single == 0);
    CHECK(run(crowding, {20, 10, 1.0}, 20 * kSecond, 512).single == 0);
    CHECK_FALSE(crowding.single(0));
    CHECK_FALSE(crowding.single(-1));
    for (int32_t rows = 1; rows <= 64; ++rows) run(crowding, {7.6, 5.8, 0.7}, kSecond / 4, rows);   // every kind has its place
}

TEST_CASE("while time stands still nothing changes") {
    Crowding crowding;
    for (int i = 0; i < 100'000; ++i) {
        REQUIRE_FALSE(crowding.single(1));
        crowding.observe({1, false, 0, 1000, 1000});
    }
}

TEST_CASE("the same reports give the same decisions") {
    Crowding a, b;
    const Machine machine{6, 6, 0.5, 0.6};
    const Tally first = run(a, machine, 30 * kSecond, 3, 9);
    const Tally second = run(b, machine, 30 * kSecond, 3, 9);
    CHECK(first.single == second.single);
    CHECK(first.elapsed_ns == second.elapsed_ns);
}
