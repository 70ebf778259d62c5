// RotationCache: cosines and sines of the positions that a compute thread has met. A step needs the same few positions in every
// layer, and a sine in float64 costs as much as the rotation of a head. Values are a function of frequencies and position alone, so
// that a hit has the bits of a miss. One thread's own; knows no step and no model.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"

namespace takt::cpu {

/// One position's, valid until the cache's next get(). `half` = head_dim / 2 values each.
struct Rotation {
    const float* cosine = nullptr;
    const float* sine = nullptr;
    int half = 0;
};

/// Rotates one head in place.
void rotate(const Rotation& rotation, RopeStyle style, float* head);

class RotationCache {
public:
    /// cos and sin of position x frequency, times the magnitude. Computes what it does not hold.
    Rotation get(const RopeParams& rope, int32_t position, int head_dim);

private:
    static constexpr int32_t kPositions = 512;   // the rows of the largest step on one thread
    static constexpr size_t kMostTables = 4;     // models have one or two bases
    struct Table {
        std::vector<float> frequencies;
        float magnitude = 1.0f;
        std::vector<int32_t> positions;   // [kPositions], by position modulo; -1: none
        std::vector<float> values;        // [kPositions][cosines, sines]
    };
    Table& table(const RopeParams& rope, int half);

    std::vector<Table> tables_;
};

}  // namespace takt::cpu
