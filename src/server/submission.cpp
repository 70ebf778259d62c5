// Submission to the engine. Server thread; the engine completes onto it.
#include "server/submission.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

#include "server/clock.h"

namespace takt::server {

std::string ServerState::make_id(std::string_view prefix) {
    constexpr char digits[] = "0123456789abcdef";
    std::uint64_t mixed = next_id++ ^ (static_cast<std::uint64_t>(started_unix) << 24);
    std::string out(prefix);
    for (int i = 0; i < 16; ++i) {
        out += digits[(mixed >> 60) & 15];
        mixed <<= 4;
    }
    return out;
}

Failure to_failure(const boost::system::error_code& ec, const std::string& detail, double retry_after_ms) {
    Failure out;
    if (!ec) return out;
    if (ec.category() == takt_category()) {
        out.code = static_cast<errc>(ec.value());
    } else if (ec == boost::asio::error::operation_aborted) {
        out.code = errc::cancelled;
    } else {
        out.code = errc::internal;
    }
    out.message = detail.empty() ? ec.message() : detail;
    out.retry_after_ms = retry_after_ms;
    return out;
}

TenantPlace::TenantPlace(ServerState& state, std::string tenant)
    : state_(&state), tenant_(std::move(tenant)), counts_tokens_(state.tenants.counts_tokens(tenant_)) {
    state_->tenants.started(tenant_, steady_now_ns());
}

TenantPlace::TenantPlace(TenantPlace&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)),
      tenant_(std::move(other.tenant_)),
      counts_tokens_(other.counts_tokens_),
      accepted_(other.accepted_) {}

TenantPlace& TenantPlace::operator=(TenantPlace&& other) noexcept {
    if (this != &other) {
        leave();
        state_ = std::exchange(other.state_, nullptr);
        tenant_ = std::move(other.tenant_);
        counts_tokens_ = other.counts_tokens_;
        accepted_ = other.accepted_;
    }
    return *this;
}

TenantPlace::~TenantPlace() { leave(); }

void TenantPlace::leave() {
    if (state_ == nullptr) return;
    if (accepted_) {
        state_->tenants.ended(tenant_, steady_now_ns());
    } else {
        state_->tenants.refused(tenant_);
    }
}

void TenantPlace::accepted(std::int64_t prompt_tokens) {
    accepted_ = true;
    charge(prompt_tokens);
}

void TenantPlace::charge(std::int64_t tokens) const {
    if (state_ != nullptr && counts_tokens_) state_->tenants.charge(tenant_, tokens, steady_now_ns());
}

namespace {

Failure refused(errc code, std::string message, double retry_after_ms = 0) {
    Failure out;
    out.code = code;
    out.message = std::move(message);
    out.retry_after_ms = retry_after_ms;
    return out;
}

constexpr double kStartMs = 1000;   // how long a start takes: nobody knows

Failure ready_failure(const ServerState& state) {
    if (state.draining) return drain_failure(state);
    if (!state.engine) return refused(errc::draining, "the model is not loaded yet", kStartMs);
    return Failure();
}

Failure tenant_failure(ServerState& state, const std::string& tenant) {
    const TenantBook::Verdict verdict = state.tenants.may_start(tenant, steady_now_ns());
    if (verdict.kind == TenantBook::Verdict::Kind::queue_full) {
        return refused(errc::queue_full, verdict.message, verdict.retry_after_ms);
    }
    if (verdict.kind == TenantBook::Verdict::Kind::rate_limited) {
        return refused(errc::rate_limited, verdict.message, verdict.retry_after_ms);
    }
    return Failure();
}

}  // namespace

Failure drain_failure(const ServerState& state) {
    const std::chrono::duration<double, std::milli> left = state.drain_deadline - steady_now();
    return refused(errc::draining, "the server is shutting down", std::max(left.count(), kStartMs));
}

asio::awaitable<Accepted> submit(ServerState& state, Identity identity, Request request,
                                 asio::cancellation_signal& cancel) {
    Accepted out;
    out.failure = ready_failure(state);
    if (!out.failure) out.failure = tenant_failure(state, identity.tenant);
    if (out.failure) {
        state.count_refusal(out.failure.code);
        co_return out;
    }
    if (request.sla_class.empty()) request.sla_class = identity.sla_class;
    request.tenant = identity.tenant;
    request.domain = identity.tenant;
    for (const TenantSection& tenant : state.config.tenants) {
        if (tenant.name == identity.tenant && tenant.shared_prefix) request.domain.clear();
    }
    out.place = TenantPlace(state, identity.tenant);
    const auto refusal = std::make_shared<Refusal>();
    auto token = asio::bind_cancellation_slot(cancel.slot(), asio::as_tuple(asio::use_awaitable));
    auto result = co_await state.engine.async_submit(std::move(request), refusal, std::move(token));
    out.failure = to_failure(std::get<0>(result), refusal->message, refusal->retry_after_ms);
    out.reply = std::move(std::get<1>(result));
    if (!out.failure) {
        out.place.accepted(out.reply.prompt_tokens());
    } else {
        out.place = TenantPlace();
    }
    co_return out;
}

asio::awaitable<Next> next_chunk(Reply& reply) {
    auto result = co_await reply.async_next(asio::as_tuple(asio::use_awaitable));
    Next out;
    out.failure = to_failure(std::get<0>(result));
    out.chunk = std::move(std::get<1>(result));
    co_return out;
}

}  // namespace takt::server
