// WordCache: token ids of words seen lately, direct-mapped, one cache line an entry. Belongs to one encoder at a time.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace takt {

class WordCache {
public:
    static constexpr size_t kMaxWordBytes = 23;
    static constexpr size_t kMaxTokens = 9;

    struct Key {
        std::array<uint64_t, 3> words;  // the bytes, zero-filled; the last byte is the length

        bool operator==(const Key&) const = default;
    };

    struct alignas(64) Entry {
        Key key{};
        std::array<int32_t, kMaxTokens> tokens{};
        uint32_t count = 0;
    };

    /// The key of a word of 1 to kMaxWordBytes bytes at `begin` in `text`.
    static Key make_key(std::string_view text, size_t begin, size_t size) {
        Key key{};
        if (begin + sizeof(key.words) <= text.size()) {
            std::memcpy(key.words.data(), text.data() + begin, sizeof(key.words));
            for (size_t i = 0; i < key.words.size(); ++i) {
                const size_t first = i * 8;
                if (size <= first) {
                    key.words[i] = 0;
                } else if (size < first + 8) {
                    key.words[i] &= (uint64_t{1} << ((size - first) * 8)) - 1;
                }
            }
        } else {
            std::memcpy(key.words.data(), text.data() + begin, size);
        }
        key.words[2] |= uint64_t{size} << 56;
        return key;
    }

    /// The entry of the key: a hit if its key is equal, else the place to store it.
    Entry& entry(const Key& key) { return entries_[hash(key) >> (64 - kBits)]; }

private:
    static constexpr uint32_t kBits = 13;  // 8,192 entries, 512 KiB: half of a common L2

    static uint64_t hash(const Key& key) {
        uint64_t h = key.words[0] * 0x9E3779B97F4A7C15ULL;
        h = (h ^ (h >> 32) ^ key.words[1]) * 0xD6E8FEB86659FD93ULL;
        h = (h ^ (h >> 32) ^ key.words[2]) * 0x9E3779B97F4A7C15ULL;
        return h;
    }

    std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << kBits);
};

}  // namespace takt
