// The sampling generator against the published known answers of Philox4x32-10.
#include "catch.h"

#include "kernels/philox.h"

using namespace takt;
using Words = std::array<uint32_t, 4>;

TEST_CASE("Philox4x32-10 gives the published answers") {
    CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
    CHECK(philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}) ==
          Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
    CHECK(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}) ==
          Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("uniform numbers depend on seed and position, and fill the unit interval") {
    double sum = 0;
    for (int32_t i = 0; i < 10000; ++i) {
        const double u = sampling_uniform(42, i);
        REQUIRE((u >= 0.0 && u < 1.0));
        sum += u;
    }
    CHECK(sum / 10000 == Approx(0.5).margin(0.01));
    CHECK(sampling_uniform(1, 7) != sampling_uniform(2, 7));
    CHECK(sampling_uniform(1ull << 40, 7) != sampling_uniform(0, 7));
    CHECK(sampling_uniform(1, 7) != sampling_uniform(1, 8));
}
