// When a step will end: two clocks that are apart and drift, and steps that end sooner than predicted.
#include "catch.h"
#include "runtime/end_forecast.h"

using takt::EndForecast;

namespace {

constexpr uint64_t kMs = 1'000'000, kUs = 1'000;
constexpr uint64_t kEpoch = 1'700'000'000'000'000'000;   // the device's clock counts from elsewhere

}  // namespace

TEST_CASE("the least lateness tells the distance of the clocks", "[end_forecast]") {
    EndForecast forecast;
    uint64_t end = kEpoch;
    for (int i = 0; i < 50; ++i) {
        end += 5 * kMs;
        const uint64_t late = i % 7 == 0 ? 2 * kUs : 300 * kUs;
        forecast.observe(false, 5 * kMs, 5 * kMs, end, end - kEpoch + kMs + late);
        if (i == 0) continue;
        CHECK(forecast.last_end_ns() >= end - kEpoch + kMs);
        CHECK(forecast.last_end_ns() <= end - kEpoch + kMs + 6 * kUs);   // 7 steps' drift at most
    }
}

TEST_CASE("a clock that goes faster or slower is followed", "[end_forecast]") {
    for (const double rate : {1.00005, 0.99995}) {
        EndForecast forecast;
        for (uint64_t i = 1; i < 2000; ++i) {
            const uint64_t end = i * 5 * kMs;
            const auto device = kEpoch + static_cast<uint64_t>(rate * static_cast<double>(end));
            forecast.observe(false, 5 * kMs, 5 * kMs, device, end + 10 * kUs);
            CHECK(forecast.last_end_ns() <= end + 10 * kUs);
            CHECK(forecast.last_end_ns() + kUs >= end + 10 * kUs);
        }
    }
}

TEST_CASE("a device without stamps ends its step where the engine sees it", "[end_forecast]") {
    EndForecast forecast;
    forecast.observe(false, 5 * kMs, 0, 0, 77 * kMs);
    CHECK(forecast.last_end_ns() == 77 * kMs);
    CHECK(forecast.early_ns(false) == 0);
}

TEST_CASE("what steps of a kind lately ended too soon is held back", "[end_forecast]") {
    EndForecast forecast;
    const auto step = [&](bool prefill, uint64_t predicted, uint64_t took) { forecast.observe(prefill, predicted, took, kEpoch, kMs); };
    for (int i = 0; i < 8; ++i) step(false, 5 * kMs, 5 * kMs - 200 * kUs);
    CHECK(forecast.early_ns(false) > 190 * kUs);
    CHECK(forecast.early_ns(false) <= 200 * kUs);
    CHECK(forecast.early_ns(true) == 0);
    step(false, 5 * kMs, 6 * kMs);   // one that took longer takes little of it back
    CHECK(forecast.early_ns(false) > 180 * kUs);
    for (int i = 0; i < 300; ++i) step(false, 5 * kMs, 5 * kMs);
    CHECK(forecast.early_ns(false) < kUs);
    step(true, 8 * kMs, kMs);   // an outlier counts for a quarter of a step at most
    CHECK(forecast.early_ns(true) <= kMs);
}
