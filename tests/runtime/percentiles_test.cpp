// Nearest ranks: every figure is a value that occurred, and a whole rank is not rounded up by binary fractions.
#include <takt/percentiles.h>

#include "catch.h"

using takt::Percentiles;

TEST_CASE("percentiles are nearest ranks and name their count") {
    std::vector<double> values;
    for (int i = 100; i >= 1; --i) values.push_back(i);
    const Percentiles p = takt::percentiles(values);
    CHECK(p.count == 100);
    CHECK(p.p50 == 50);
    CHECK(p.p95 == 95);
    CHECK(p.p99 == 99);
    CHECK(p.max == 100);
    CHECK(p.mean == 50.5);
    values.push_back(0);
    CHECK(takt::percentiles(values).p50 == 50);   // the 51st of 0 to 100
    CHECK(takt::percentiles({7}).p99 == 7);
    CHECK(takt::percentiles({1, 2}).p50 == 1);
    CHECK(takt::percentiles({}).count == 0);
}

TEST_CASE("the ends of the range are the least and the greatest value") {
    std::vector<double> values{3, 1, 2};
    CHECK(takt::percentile(values, 0) == 1);
    CHECK(takt::percentile(values, 1) == 3);
    CHECK(takt::percentile(values, 0.34) == 2);
    values.clear();
    CHECK(takt::percentile(values, 0.5) == 0);
}
