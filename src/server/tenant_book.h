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
    void started(const std::string& tenant, std::uint64_t now_ns);
    /// A request that ran has left its place; the time between such ends is what a full tenant's `retry_after_ms` goes by.
    void ended(const std::string& tenant, std::uint64_t now_ns);
    /// One that started was not taken by the engine: its place is free again and nothing is learned of it.
    void refused(const std::string& tenant);
    /// Prompt and generated tokens, as they happen; a tenant may overdraw by what one request takes.
    void charge(const std::string& tenant, std::int64_t tokens, std::uint64_t now_ns);

    /// Tokens of this tenant are counted at all.
    [[nodiscard]] bool counts_tokens(const std::string& tenant) const;

    /// False: the tenant's max_connections is reached.
    bool connect(const std::string& tenant);
    void disconnect(const std::string& tenant);

private:
    struct Account {
        std::int64_t max_requests = 0;        ///< running + waiting; 0: no limit
        std::int64_t max_connections = 0;
        double tokens_per_minute = 0;
        double balance = 0;                   ///< tokens; refilled evenly, at most one minute's worth
        std::uint64_t refilled_ns = 0;
        std::int64_t num_live = 0;
        std::uint64_t last_end_ns = 0;        ///< or when the first of the live ones started
        double end_interval_ns = 0;           ///< mean over the last ends while requests lived; 0: none yet
        std::int64_t num_connections = 0;
    };
    static void refill(Account& account, std::uint64_t now_ns);
    /// When the next live request should end, from now.
    static double next_end_ms(const Account& account, std::uint64_t now_ns);

    std::map<std::string, Account> accounts_;
};

}  // namespace takt::server
