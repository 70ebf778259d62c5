// Memory of middle size on huge pages: pieces never overlap, and a slab goes with its last piece.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "catch.h"
#include "kernels/cpu/slabs.h"

using namespace takt::cpu;

TEST_CASE("pieces of slabs are aligned, keep their contents and are given back in any order") {
    Slabs slabs;
    std::mt19937 random(3);
    struct Piece {
        uint8_t* data;
        size_t bytes;
        uint8_t value;
    };
    std::vector<Piece> pieces;
    for (int i = 0; i < 300; ++i) {
        const size_t bytes = (size_t{16} << 10) + random() % 500'000;
        REQUIRE(Slabs::serves(bytes));
        auto* data = static_cast<uint8_t*>(slabs.take(bytes));
        REQUIRE(data != nullptr);
        REQUIRE(reinterpret_cast<uintptr_t>(data) % 64 == 0);
        pieces.push_back({data, bytes, static_cast<uint8_t>(i)});
        std::memset(data, pieces.back().value, bytes);
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    for (const Piece& p : pieces) {
        CHECK(p.data[0] == p.value);
        CHECK(p.data[p.bytes - 1] == p.value);
        CHECK(std::memcmp(p.data, p.data + 1, p.bytes - 1) == 0);
        CHECK(slabs.give(p.data));
    }
    CHECK_FALSE(slabs.give(pieces.front().data));   // its slab is gone
}

TEST_CASE("slabs leave small and large memory to others") {
    CHECK_FALSE(Slabs::serves(64));
    CHECK_FALSE(Slabs::serves(kHugePageBytes));
    Slabs slabs;
    int elsewhere = 0;
    CHECK_FALSE(slabs.give(&elsewhere));
}
