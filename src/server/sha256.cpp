// SHA-256 and comparison in constant time, by OpenSSL. Pure functions, any thread.
#include "server/sha256.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <boost/algorithm/hex.hpp>

namespace takt::server {

Sha256 sha256(std::string_view bytes) {
    static_assert(std::tuple_size_v<Sha256> == SHA256_DIGEST_LENGTH);
    Sha256 out{};
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), out.data());
    return out;
}

std::optional<Sha256> parse_sha256(std::string_view hex) {
    Sha256 out{};
    if (hex.size() != 2 * out.size()) return std::nullopt;
    try {
        boost::algorithm::unhex(hex.begin(), hex.end(), out.begin());
    } catch (const boost::algorithm::hex_decode_error&) {
        return std::nullopt;
    }
    return out;
}

bool same_digest(const Sha256& a, const Sha256& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace takt::server
