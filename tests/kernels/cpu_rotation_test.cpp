// Rotary embedding: held values are those computed afresh, whatever was asked for between, and a rotation turns pairs by the angle.
#include <cmath>
#include <random>
#include <vector>

#include "catch.h"
#include "kernels/cpu/rotation.h"

using namespace takt;
using namespace takt::cpu;

namespace {

std::vector<float> frequencies(int head_dim, float base) {
    std::vector<float> f;
    for (int i = 0; i < head_dim / 2; ++i) f.push_back(std::pow(base, -2.0f * static_cast<float>(i) / static_cast<float>(head_dim)));
    return f;
}

}  // namespace

TEST_CASE("held cosines and sines have the bits of computed ones") {
    std::mt19937 random(5);
    const std::vector<float> slow = frequencies(64, 1e6f), fast = frequencies(64, 1e4f), wide = frequencies(128, 1e4f);
    const RopeParams ropes[] = {{RopeStyle::half, slow.data(), 1.0f},
                                {RopeStyle::half, fast.data(), 1.0f},
                                {RopeStyle::half, fast.data(), 1.25f},
                                {RopeStyle::interleaved, wide.data(), 1.0f},
                                {RopeStyle::half, wide.data(), 0.5f}};   // more than the cache keeps
    RotationCache cache;
    for (int i = 0; i < 20'000; ++i) {
        const RopeParams& rope = ropes[random() % 5];
        const int dims = rope.inverse_frequencies == wide.data() ? 128 : 64;
        const auto position = static_cast<int32_t>(random() % 3 == 0 ? random() % 100'000 : random() % 700);
        const Rotation r = cache.get(rope, position, dims);
        REQUIRE(r.half == dims / 2);
        const int k = static_cast<int>(random() % static_cast<uint32_t>(r.half));
        const double angle = static_cast<double>(position) * static_cast<double>(rope.inverse_frequencies[k]);
        REQUIRE(r.cosine[k] == static_cast<float>(std::cos(angle)) * rope.magnitude);
        REQUIRE(r.sine[k] == static_cast<float>(std::sin(angle)) * rope.magnitude);
    }
}

TEST_CASE("frequencies are compared by value: another model's at the same address are not mixed up") {
    std::vector<float> f = frequencies(64, 1e4f);
    RotationCache cache;
    const RopeParams rope{RopeStyle::half, f.data(), 1.0f};
    const float before = cache.get(rope, 7, 64).sine[3];
    for (float& x : f) x *= 0.5f;
    const float after = cache.get(rope, 7, 64).sine[3];
    CHECK(after != before);
    CHECK(after == static_cast<float>(std::sin(7.0 * static_cast<double>(f[3]))));
}

TEST_CASE("a rotation turns the pairs of its style") {
    const std::vector<float> f = frequencies(64, 1e4f);
    RotationCache cache;
    for (const RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
        std::vector<float> head(64);
        for (int i = 0; i < 64; ++i) head[static_cast<size_t>(i)] = static_cast<float>(i) - 20.0f;
        const std::vector<float> old = head;
        rotate(cache.get({style, f.data(), 1.0f}, 11, 64), style, head.data());
        for (size_t i = 0; i < 32; ++i) {
            const size_t a = style == RopeStyle::half ? i : 2 * i, b = style == RopeStyle::half ? i + 32 : 2 * i + 1;
            const double angle = 11.0 * static_cast<double>(f[i]);
            CHECK(std::abs(head[a] - (old[a] * std::cos(angle) - old[b] * std::sin(angle))) < 1e-4);
            CHECK(std::abs(head[b] - (old[a] * std::sin(angle) + old[b] * std::cos(angle))) < 1e-4);
        }
    }
}
