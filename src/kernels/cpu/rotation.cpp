// Rotary embedding of one row. See rotation.h.
#include "kernels/cpu/rotation.h"

#include <algorithm>
#include <cmath>

namespace takt::cpu {

namespace {

/// Pairs (i * step, i * step + other) of a head. Known steps let the compiler take several pairs at once.
template <int step>
void rotate_pairs(const Rotation& rotation, int other, float* __restrict head) {
    const float* __restrict cosine = rotation.cosine;
    const float* __restrict sine = rotation.sine;
    float* __restrict second = head + other;
    for (int i = 0; i < rotation.half; ++i) {
        const float a = head[i * step];
        const float b = second[i * step];
        head[i * step] = a * cosine[i] - b * sine[i];
        second[i * step] = a * sine[i] + b * cosine[i];
    }
}

}  // namespace

void rotate(const Rotation& rotation, RopeStyle style, float* head) {
    if (style == RopeStyle::interleaved) return rotate_pairs<2>(rotation, 1, head);
    rotate_pairs<1>(rotation, rotation.half, head);
}

RotationCache::Table& RotationCache::table(const RopeParams& rope, int half) {
    const auto n = static_cast<size_t>(half);
    for (Table& t : tables_) {
        const bool same = t.frequencies.size() == n && t.magnitude == rope.magnitude &&
                          std::equal(t.frequencies.begin(), t.frequencies.end(), rope.inverse_frequencies);
        if (same) return t;
    }
    if (tables_.size() == kMostTables) tables_.clear();   // other models than before
    Table& t = tables_.emplace_back();
    t.frequencies.assign(rope.inverse_frequencies, rope.inverse_frequencies + half);
    t.magnitude = rope.magnitude;
    t.positions.assign(kPositions, -1);
    t.values.resize(kPositions * 2 * n);
    return t;
}

Rotation RotationCache::get(const RopeParams& rope, int32_t position, int head_dim) {
    const int half = head_dim / 2;
    Table& t = table(rope, half);
    const auto slot = static_cast<size_t>(position % kPositions);
    float* cosine = t.values.data() + slot * 2 * static_cast<size_t>(half);
    float* sine = cosine + half;
    if (t.positions[slot] != position) {
        for (int i = 0; i < half; ++i) {
            // float64 angle: at position 100,000 a float32 product would already be off by a hundredth of a turn.
            const double angle = static_cast<double>(position) * static_cast<double>(rope.inverse_frequencies[i]);
            cosine[i] = static_cast<float>(std::cos(angle)) * rope.magnitude;
            sine[i] = static_cast<float>(std::sin(angle)) * rope.magnitude;
        }
        t.positions[slot] = position;
    }
    return {cosine, sine, half};
}

}  // namespace takt::cpu
