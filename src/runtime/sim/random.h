// Random: the only source of chance in simulations: a seeded splitmix sequence, equal on every compiler. Pure, any thread.
#pragma once

#include <cmath>
#include <cstdint>

namespace takt::sim {

class Random {
public:
    explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 0x632be59bd9b4e019ULL) {}

    uint64_t next() {
        uint64_t x = state_ += 0x9e3779b97f4a7c15ULL;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
        return x ^ (x >> 31);
    }
    /// In [0, bound).
    uint64_t below(uint64_t bound) { return bound == 0 ? 0 : next() % bound; }
    /// In [low, high].
    int32_t between(int32_t low, int32_t high) {
        return low + static_cast<int32_t>(below(static_cast<uint64_t>(high - low) + 1));
    }
    /// In [0, 1).
    double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
    bool chance(double share) { return uniform() < share; }
    double exponential(double mean) { return -mean * std::log(1.0 - uniform()); }
    /// Sum of twelve uniforms: normal enough for noise, and without a library's own sine.
    double normal() {
        double sum = -6.0;
        for (int i = 0; i < 12; ++i) sum += uniform();
        return sum;
    }

private:
    uint64_t state_;
};

}  // namespace takt::sim
