// Gate: counts passes, refuses once closed, tells its waiter exactly once and only when nobody is inside.
#include "runtime/gate.h"

#include <vector>

#include "catch.h"

using takt::Gate;

TEST_CASE("passes are counted until they leave") {
    Gate gate;
    Gate::Pass first = gate.enter();
    REQUIRE(first);
    {
        const Gate::Pass second = gate.enter();
        CHECK(gate.num_inside() == 2);
    }
    CHECK(gate.num_inside() == 1);
    Gate::Pass moved = std::move(first);
    CHECK_FALSE(first);
    CHECK(gate.num_inside() == 1);
    moved = Gate::Pass();
    CHECK(gate.num_inside() == 0);
}

TEST_CASE("a pass that takes another's place leaves its own") {
    Gate gate;
    Gate::Pass a = gate.enter();
    a = gate.enter();
    CHECK(gate.num_inside() == 1);
    Gate::Pass& same = a;
    a = std::move(same);   // onto itself: stays inside
    CHECK(a);
    CHECK(gate.num_inside() == 1);
}

TEST_CASE("a closed gate refuses and tells once, when the last has left") {
    Gate gate;
    Gate::Pass first = gate.enter();
    Gate::Pass second = gate.enter();
    int told = 0;
    gate.close([&] { ++told; });
    CHECK(gate.is_closed());
    CHECK_FALSE(gate.enter());
    CHECK(gate.num_inside() == 2);
    first = Gate::Pass();
    CHECK(told == 0);
    second = Gate::Pass();
    CHECK(told == 1);
    gate.close();
    CHECK(told == 1);
}

TEST_CASE("an empty gate tells inside close, and every waiter of a later close too") {
    Gate gate;
    std::vector<int> order;
    gate.close([&] { order.push_back(1); });
    gate.close([&] { order.push_back(2); });
    CHECK(order == std::vector<int>{1, 2});
}
