// FairShares: weights, the lift of a tenant that comes back, and a bounded gap under a lowest-counter-first service.
#include "runtime/fairness.h"

#include <random>

#include "catch.h"

using takt::FairShares;

namespace {

int32_t lowest_active(const FairShares& shares) {
    int32_t best = -1;
    for (int32_t t = 0; t < shares.num_tenants(); ++t) {
        if (shares.is_active(t) && (best < 0 || shares.counter(t) < shares.counter(best))) best = t;
    }
    return best;
}

}  // namespace

TEST_CASE("device time counts over the weights of tenant and class") {
    FairShares shares({1.0, 4.0});
    shares.enter(0);
    shares.enter(1);
    shares.charge(0, 8.0, 1.0);
    shares.charge(1, 8.0, 1.0);
    CHECK(shares.counter(0) == Approx(8.0));
    CHECK(shares.counter(1) == Approx(2.0));
    shares.charge(0, 8.0, 2.0);
    CHECK(shares.counter(0) == Approx(12.0));
    CHECK(shares.greatest_gap() == Approx(10.0));
    shares.leave(1);
    CHECK(shares.greatest_gap() == 0.0);   // only active ones are compared
    shares.leave(0);
    CHECK(shares.greatest_gap() == 0.0);
}

TEST_CASE("idling earns no credit, and coming back costs none") {
    FairShares shares({1.0, 1.0, 1.0});
    shares.enter(0);
    shares.charge(0, 100.0, 1.0);
    shares.enter(1);
    CHECK(shares.counter(1) == Approx(100.0));   // lifted to the lowest active
    shares.charge(1, 50.0, 1.0);
    shares.leave(1);
    shares.enter(1);
    CHECK(shares.counter(1) == Approx(150.0));   // never lowered
    shares.enter(2);
    CHECK(shares.counter(2) == Approx(100.0));
}

TEST_CASE("a second request of an active tenant lifts nothing") {
    FairShares shares({1.0, 1.0});
    shares.enter(0);
    shares.enter(1);
    shares.charge(1, 10.0, 1.0);
    shares.enter(0);
    CHECK(shares.counter(0) == 0.0);
    shares.leave(0);
    CHECK(shares.is_active(0));
    shares.leave(0);
    CHECK_FALSE(shares.is_active(0));
}

TEST_CASE("the lowest counter first keeps the gap within one charge") {
    FairShares shares({1.0, 2.0, 0.5});
    std::mt19937 random(7);
    for (int32_t t = 0; t < 3; ++t) shares.enter(t);
    constexpr double kMost = 20.0;
    for (int i = 0; i < 5000; ++i) {
        shares.charge(lowest_active(shares), kMost * static_cast<double>(random() % 1000) / 1000.0, 1.0);
        REQUIRE(shares.greatest_gap() <= kMost / 0.5);
    }
    CHECK(shares.counter(0) > 1000.0);
}

TEST_CASE("no tenants at all is one, and a weight of nothing does not divide by it") {
    FairShares none({});
    CHECK(none.num_tenants() == 1);
    FairShares zero({0.0});
    zero.enter(0);
    zero.charge(0, 1.0, 0.0);
    CHECK(zero.counter(0) > 0.0);
    CHECK(zero.counter(0) < 1e300);
}
