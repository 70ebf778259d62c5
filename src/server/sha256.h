// SHA-256 (FIPS 180-4) of a byte string, for comparing keys with their configured digests. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace takt::server {

using Sha256 = std::array<std::uint8_t, 32>;

Sha256 sha256(std::string_view bytes);
/// 64 hexadecimal digits; empty optional for anything else.
std::optional<Sha256> parse_sha256(std::string_view hex);
/// Takes the same time wherever the two differ.
bool same_digest(const Sha256& a, const Sha256& b);

}  // namespace takt::server
