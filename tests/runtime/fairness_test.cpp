// FairShares: weights, the lift of a tenant that comes back, and a bounded gap under a lowest-counter-first service.
#include "runtime/fairness.h"

#include <random>

#include "catch.h"

using takt::FairShares;
using takt::kReturnCreditMs;

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

TEST_CASE("idling earns no more than a little credit, and coming back costs none") {
    FairShares shares({1.0, 1.0, 1.0});
    shares.enter(0);
    shares.charge(0, 1000.0, 1.0);
    shares.enter(1);
    CHECK(shares.counter(1) == Approx(1000.0 - kReturnCreditMs));   // lifted to near the lowest active
    shares.charge(1, 500.0, 1.0);
    shares.leave(1);
    shares.enter(1);
    CHECK(shares.counter(1) == Approx(1500.0 - kReturnCreditMs));   // never lowered
    shares.enter(2);
    CHECK(shares.counter(2) == Approx(1000.0 - kReturnCreditMs));
}

TEST_CASE("credits of several that come back do not add up, and a device that nobody else wanted is not paid for later") {
    FairShares shares({1.0, 1.0, 1.0, 1.0});
    shares.enter(0);
    shares.charge(0, 5000.0, 1.0);
    for (int32_t t = 1; t < 4; ++t) {
        shares.enter(t);
        CHECK(shares.counter(t) == Approx(5000.0 - kReturnCreditMs));   // not below the one before
    }
    for (int32_t t = 0; t < 4; ++t) shares.leave(t);
    shares.enter(1);   // nobody is active: it stands where the others stood
    CHECK(shares.counter(1) == Approx(5000.0 - kReturnCreditMs));
    shares.enter(0);
    CHECK(shares.greatest_gap() == Approx(kReturnCreditMs));
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
