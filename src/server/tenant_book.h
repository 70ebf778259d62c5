// TenantBook: what each tenant holds right now and may still take: live requests, connections, tokens a minute. Told the
// time by its caller; knows no sockets and no engine. Server thread only.
#pragma once

#include <takt/config.h>

#include <cstdint>
#include <map>
#include <string>

namespace takt::server {

class TenantBook {
public:
    explicit TenantBook(const Config& config);

    /// Whether one more request may start; otherwise why not.
    struct Verdict {
        enum class Kind { yes, queue_full, rate_limited } kind = Kind::yes;
        double retry_after_ms = 0;
        std::string message;
    };
    Verdict may_start(const std::string& tenant, std::uint64_t now_ns);
    void started(const std::string& tenant);
    void ended(const std::string& tenant);
    /// Prompt and generated tokens, as they happen; a tenant may overdraw by what one request takes.
    void charge(const std::string& tenant, std::int64_t tokens, std::uint64_t now_ns);

    /// Tokens of this tenant are counted at all.
    [[nodiscard]] bool counts_tokens(const std::string& tenant) const;

    /// False: the tenant's max_connections is reached.
    bool connect(const std::string& tenant);
    void disconnect(const std::string& tenant);

    [[nodiscard]] std::int64_t live_requests(const std::string& tenant) const;

private:
    struct Account {
        std::int64_t max_requests = 0;        ///< running + waiting; 0: no limit
        std::int64_t max_connections = 0;
        double tokens_per_minute = 0;
        double balance = 0;                   ///< tokens; refilled evenly, at most one minute's worth
        std::uint64_t refilled_ns = 0;
        std::int64_t num_live = 0;
        std::int64_t num_connections = 0;
    };
    static void refill(Account& account, std::uint64_t now_ns);

    std::map<std::string, Account> accounts_;
};

}  // namespace takt::server
