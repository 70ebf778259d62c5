// Philox4x32-10, the counter-based generator of sampling: the same bits on every device. Keyed by (seed, position), so that a
// request's tokens do not depend on who else is sampled, nor on preemption. Source: Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011). Pure.
#pragma once

#include <array>
#include <cstdint>

namespace takt {

/// The four words for counter c under key k.
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * c[0];
        const uint64_t b = uint64_t{0xCD9E8D57u} * c[2];
        c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
             static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return c;
}

/// Uniform in [0, 1) with 53 bits for the token at `position` under `seed`.
inline double sampling_uniform(uint64_t seed, int32_t position) {
    const auto words = philox4x32({static_cast<uint32_t>(position), 0, 0, 0},
                                  {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
    return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace takt
