// Shapes of the generated Unicode tables (unicode_*_table.cpp). Only unicode*.cpp may read them; everybody else goes
// through unicode.h. Read-only data, any thread.
#pragma once

#include <cstdint>
#include <span>

namespace takt::unicode_tables {

struct Range {
    uint32_t first;
    uint32_t last;
};

/// `composed` = `first` then `second` (0: a singleton). `primary` 1: NFC composes the pair back.
struct Decomposition {
    uint32_t composed;
    uint32_t first;
    uint32_t second;
    uint32_t primary;
};

struct CombiningRange {
    uint32_t first;
    uint32_t last;
    uint32_t combining_class;
};

/// Every `stride`-th code point from `first` to `last` maps to itself plus `delta`.
struct CaseRange {
    uint32_t first;
    uint32_t last;
    uint32_t stride;
    int32_t delta;
};

extern const std::span<const Range> letters;
extern const std::span<const Range> numbers;
extern const std::span<const Decomposition> decompositions_low;
extern const std::span<const Decomposition> decompositions_high;
extern const std::span<const CombiningRange> combining_classes;
extern const std::span<const CaseRange> to_upper;
extern const std::span<const CaseRange> to_lower;

}  // namespace takt::unicode_tables
