// Who may come in: Host, Origin, keys, CORS; and the digests behind the keys.
#include "server/access.h"

#include <takt/error.h>

#include "catch.h"

using namespace takt;
using namespace takt::server;

namespace {

const Environment kNoEnvironment = [](const std::string&) { return std::optional<std::string>(); };

HttpRequest request_to(const std::string& method, const std::string& path, HttpHeaders headers) {
    HttpRequest out;
    out.method = method;
    out.path = path;
    out.headers = std::move(headers);
    return out;
}

TenantSection tenant(const std::string& name, const std::string& digest) {
    TenantSection out;
    out.name = name;
    out.key_sha256 = digest;
    out.sla_class = "c-" + name;
    return out;
}

std::string hex(const Sha256& digest) {
    constexpr char digits[] = "0123456789abcdef";
    std::string out;
    for (const std::uint8_t byte : digest) {
        out += digits[byte >> 4];
        out += digits[byte & 15];
    }
    return out;
}

}  // namespace

TEST_CASE("SHA-256 of the published vectors and across the padding's edges") {
    CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hex(sha256(std::string(1000000, 'a'))) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    // Lengths 55, 56 and 64 end in, at and past the length field's block.
    CHECK(hex(sha256(std::string(55, 'a'))) == "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
    CHECK(hex(sha256(std::string(56, 'a'))) == "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
    CHECK(hex(sha256(std::string(64, 'a'))) == "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
    CHECK(parse_sha256(hex(sha256("x"))) == sha256("x"));
    CHECK_FALSE(parse_sha256("abc"));
    CHECK_FALSE(parse_sha256(std::string(64, 'g')));
    CHECK(same_digest(sha256("x"), sha256("x")));
    CHECK_FALSE(same_digest(sha256("x"), sha256("y")));
}

TEST_CASE("on a loopback bind only this machine's names are a Host") {
    const Access access(Config(), kNoEnvironment);
    for (const char* host : {"127.0.0.1:8480", "localhost", "localhost:9", "LOCALHOST:1", "[::1]:8480", "127.9.9.9"}) {
        CHECK_FALSE(access.refuse(request_to("GET", "/", {{"Host", host}}), false));
    }
    for (const char* host : {"evil.example", "127.0.0.1.evil.example", "127.evil", "localhost.evil.example:8480", "0"}) {
        const auto refusal = access.refuse(request_to("GET", "/health", {{"Host", host}}), false);
        REQUIRE(refusal);
        CHECK(refusal->status == 403);
    }
    Config open;
    open.server.host = "0.0.0.0";
    CHECK_FALSE(Access(open, kNoEnvironment).refuse(request_to("GET", "/", {{"Host", "api.example"}}), false));
}

TEST_CASE("a foreign Origin may neither POST nor open a WebSocket") {
    Config config;
    config.server.allowed_origins = {"https://app.example"};
    const Access access(config, kNoEnvironment);
    const auto refused = [&](const char* method, const char* origin, bool upgrade) {
        return access.refuse(request_to(method, "/", {{"Host", "localhost:8480"}, {"Origin", origin}}), upgrade).has_value();
    };
    CHECK_FALSE(refused("POST", "http://localhost:8480", false));
    CHECK_FALSE(refused("GET", "http://localhost:8480", true));
    CHECK_FALSE(refused("POST", "https://app.example", false));
    CHECK(refused("POST", "http://localhost:9999", false));
    CHECK(refused("POST", "null", false));
    CHECK(refused("POST", "https://evil.example", false));
    CHECK(refused("GET", "https://evil.example", true));
    CHECK(refused("POST", "https://app.example.evil", false));
    CHECK_FALSE(refused("GET", "https://evil.example", false));
}

TEST_CASE("CORS headers go to allowed origins only") {
    Config config;
    config.server.allowed_origins = {"https://app.example"};
    const Access access(config, kNoEnvironment);
    CHECK(access.cors_headers(request_to("GET", "/", {})).empty());
    CHECK(access.cors_headers(request_to("GET", "/", {{"Origin", "https://evil.example"}})).empty());
    const HttpHeaders headers = access.cors_headers(request_to("OPTIONS", "/", {{"Origin", "https://app.example"}}));
    REQUIRE_FALSE(headers.empty());
    CHECK(headers.front() == std::pair<std::string, std::string>("Access-Control-Allow-Origin", "https://app.example"));
}

TEST_CASE("keys: by digest, by variable, in a header or a subprotocol; everything else is nobody") {
    Config config;
    config.tenants.push_back(tenant("a", hex(sha256("key-a"))));
    TenantSection b;
    b.name = "b";
    b.key_env = "B_KEY";
    config.tenants.push_back(b);
    const Environment environment = [](const std::string& name) {
        return name == "B_KEY" ? std::optional<std::string>("key-b") : std::nullopt;
    };
    const Access access(config, environment);
    const auto who = [&](HttpHeaders headers) {
        const auto found = access.identify(request_to("POST", "/v1/completions", std::move(headers)));
        return found ? found->tenant : std::string("nobody");
    };
    CHECK(who({{"Authorization", "Bearer key-a"}}) == "a");
    CHECK(who({{"authorization", "bearer  key-b"}}) == "b");
    CHECK(access.identify(request_to("GET", "/v1/models", {{"Authorization", "Bearer key-a"}}))->sla_class == "c-a");
    CHECK(who({{"Sec-WebSocket-Protocol", "takt.v1, takt.key.a2V5LWI"}}) == "b");
    CHECK(who({{"Sec-WebSocket-Protocol", "takt.key.a2V5LWI=, takt.v1"}}) == "b");
    CHECK(who({}) == "nobody");
    CHECK(who({{"Authorization", "Bearer key-c"}}) == "nobody");
    CHECK(who({{"Authorization", "Bearer "}}) == "nobody");
    CHECK(who({{"Authorization", "Basic key-a"}}) == "nobody");
    CHECK(who({{"Sec-WebSocket-Protocol", "takt.key.!!!"}}) == "nobody");
    for (const char* path : {"/", "/health", "/health/live", "/health/ready"}) {
        CHECK(access.identify(request_to("GET", path, {})));
    }
    HttpRequest metrics = request_to("GET", "/metrics", {});
    CHECK_FALSE(access.identify(metrics));
    metrics.loopback_peer = true;
    CHECK(access.identify(metrics));
}

TEST_CASE("two tenants with one key are a configuration error, however the key is told") {
    const std::string digest = hex(sha256("secret"));
    Config config;
    config.tenants = {tenant("a", digest), tenant("b", digest)};
    CHECK_THROWS_WITH(Access(config, kNoEnvironment), Catch::Contains("tenant b: its key is that of tenant a"));
    config.tenants[1].key_sha256.clear();
    config.tenants[1].key_env = "KEY";
    const auto environment = [](const std::string&) { return std::optional<std::string>("secret"); };
    CHECK_THROWS_WITH(Access(config, environment), Catch::Contains("tenant b"));
    config.tenants[1].key_env.clear();
    config.tenants[1].key_sha256 = hex(sha256("other"));
    CHECK_NOTHROW(Access(config, kNoEnvironment));
}

TEST_CASE("a tenant without a usable key is a configuration error") {
    Config config;
    config.tenants.push_back(tenant("a", "abc"));
    CHECK_THROWS_AS(Access(config, kNoEnvironment), config_error);
    config.tenants.front().key_sha256.clear();
    config.tenants.front().key_env = "UNSET";
    CHECK_THROWS_WITH(Access(config, kNoEnvironment), Catch::Contains("UNSET"));
}

TEST_CASE("header and escape forms") {
    CHECK(header_list(" a, b ,,c") == std::vector<std::string>{"a", "b", "c"});
    CHECK(percent_decoded("/v1/models/a%20b%2") == "/v1/models/a b%2");
    bool ok = true;
    CHECK(base64url_decoded("_-8", ok) == "\xFF\xEF");
    CHECK(ok);
    base64url_decoded("a", ok);
    CHECK_FALSE(ok);
    CHECK(is_loopback_name("127.0.0.1"));
    CHECK_FALSE(is_loopback_name("0.0.0.0"));
}
