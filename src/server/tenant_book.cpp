// TenantBook. Server thread only.
#include "server/tenant_book.h"

#include <algorithm>

namespace takt::server {

namespace {

constexpr double kMinuteNs = 60e9;
constexpr double kUnknownMs = 1000;      // until a tenant's first request has ended
constexpr double kLearn = 0.125;         // weight of the newest time between two ends

}  // namespace

TenantBook::TenantBook(const Config& config) {
    for (const TenantSection& tenant : config.tenants) {
        Account account;
        // A tenant with only one of the two limits is bounded by their sum with the engine's own other half.
        if (tenant.max_running > 0 || tenant.max_waiting > 0) {
            const std::int64_t running = tenant.max_running > 0 ? tenant.max_running : config.scheduler.max_running;
            const std::int64_t waiting = tenant.max_waiting > 0 ? tenant.max_waiting : config.scheduler.max_waiting;
            account.max_requests = running + waiting;
        }
        account.max_connections = tenant.max_connections;
        account.tokens_per_minute = static_cast<double>(tenant.tokens_per_minute);
        account.balance = account.tokens_per_minute;
        accounts_[tenant.name] = account;
    }
}

void TenantBook::refill(Account& account, std::uint64_t now_ns) {
    if (account.refilled_ns != 0 && now_ns > account.refilled_ns) {
        const double share = static_cast<double>(now_ns - account.refilled_ns) / kMinuteNs;
        account.balance = std::min(account.tokens_per_minute, account.balance + share * account.tokens_per_minute);
    }
    account.refilled_ns = now_ns;
}

TenantBook::Verdict TenantBook::may_start(const std::string& tenant, std::uint64_t now_ns) {
    Verdict verdict;
    const auto found = accounts_.find(tenant);
    if (found == accounts_.end()) return verdict;
    Account& account = found->second;
    if (account.max_requests > 0 && account.num_live >= account.max_requests) {
        verdict.kind = Verdict::Kind::queue_full;
        verdict.retry_after_ms = next_end_ms(account, now_ns);
        verdict.message = "tenant " + tenant + " has " + std::to_string(account.num_live) +
                          " requests, allowed " + std::to_string(account.max_requests);
        return verdict;
    }
    if (account.tokens_per_minute <= 0) return verdict;
    refill(account, now_ns);
    if (account.balance <= 0) {
        verdict.kind = Verdict::Kind::rate_limited;
        verdict.retry_after_ms = (1 - account.balance) / account.tokens_per_minute * kMinuteNs / 1e6;
        verdict.message = "tenant " + tenant + " has spent its " +
                          std::to_string(static_cast<std::int64_t>(account.tokens_per_minute)) + " tokens a minute";
    }
    return verdict;
}

double TenantBook::next_end_ms(const Account& account, std::uint64_t now_ns) {
    if (account.end_interval_ns <= 0) return kUnknownMs;
    const double passed = now_ns > account.last_end_ns ? static_cast<double>(now_ns - account.last_end_ns) : 0;
    // One that is overdue may end at any moment; a mean interval is then the honest guess again.
    const double left = passed < account.end_interval_ns ? account.end_interval_ns - passed : account.end_interval_ns;
    return std::max(left / 1e6, 1.0);
}

void TenantBook::started(const std::string& tenant, std::uint64_t now_ns) {
    const auto found = accounts_.find(tenant);
    if (found == accounts_.end()) return;
    if (++found->second.num_live == 1) found->second.last_end_ns = now_ns;
}

void TenantBook::ended(const std::string& tenant, std::uint64_t now_ns) {
    const auto found = accounts_.find(tenant);
    if (found == accounts_.end()) return;
    Account& account = found->second;
    --account.num_live;
    const double interval = now_ns > account.last_end_ns ? static_cast<double>(now_ns - account.last_end_ns) : 0;
    account.end_interval_ns += (account.end_interval_ns <= 0 ? 1 : kLearn) * (interval - account.end_interval_ns);
    account.last_end_ns = now_ns;
}

void TenantBook::refused(const std::string& tenant) {
    const auto found = accounts_.find(tenant);
    if (found != accounts_.end()) --found->second.num_live;
}

void TenantBook::charge(const std::string& tenant, std::int64_t tokens, std::uint64_t now_ns) {
    const auto found = accounts_.find(tenant);
    if (found == accounts_.end() || found->second.tokens_per_minute <= 0) return;
    refill(found->second, now_ns);
    found->second.balance -= static_cast<double>(tokens);
}

bool TenantBook::counts_tokens(const std::string& tenant) const {
    const auto found = accounts_.find(tenant);
    return found != accounts_.end() && found->second.tokens_per_minute > 0;
}

bool TenantBook::connect(const std::string& tenant) {
    const auto found = accounts_.find(tenant);
    if (found == accounts_.end()) return true;
    Account& account = found->second;
    if (account.max_connections > 0 && account.num_connections >= account.max_connections) return false;
    ++account.num_connections;
    return true;
}

void TenantBook::disconnect(const std::string& tenant) {
    const auto found = accounts_.find(tenant);
    if (found != accounts_.end()) --found->second.num_connections;
}

}  // namespace takt::server
