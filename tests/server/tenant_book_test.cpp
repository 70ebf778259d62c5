// Tenants' books: caps on live requests and connections, tokens a minute.
#include "server/tenant_book.h"

#include "catch.h"

using namespace takt;
using namespace takt::server;

namespace {

constexpr std::uint64_t kSecond = 1000000000;

Config one_tenant() {
    Config config;
    TenantSection tenant;
    tenant.name = "t";
    tenant.max_running = 2;
    tenant.max_waiting = 1;
    tenant.max_connections = 2;
    tenant.tokens_per_minute = 600;
    config.tenants.push_back(tenant);
    return config;
}

}  // namespace

TEST_CASE("a tenant holds at most max_running + max_waiting requests") {
    TenantBook book(one_tenant());
    for (int i = 0; i < 3; ++i) {
        CHECK(book.may_start("t", kSecond).kind == TenantBook::Verdict::Kind::yes);
        book.started("t", kSecond);
    }
    const TenantBook::Verdict full = book.may_start("t", kSecond);
    CHECK(full.kind == TenantBook::Verdict::Kind::queue_full);
    CHECK(full.message.find('3') != std::string::npos);
    CHECK(full.retry_after_ms == Approx(1000));      // nothing is known yet
    book.ended("t", kSecond);
    CHECK(book.may_start("t", kSecond).kind == TenantBook::Verdict::Kind::yes);
    book.started("t", kSecond);
    CHECK(book.may_start("t", kSecond).kind == TenantBook::Verdict::Kind::queue_full);
}

TEST_CASE("a full tenant is told when its next request should end: by the time between ends, not by refusals") {
    TenantBook book(one_tenant());
    for (int i = 0; i < 3; ++i) book.started("t", kSecond);
    for (std::uint64_t end = 5 * kSecond; end <= 17 * kSecond; end += 4 * kSecond) {
        book.ended("t", end);
        book.started("t", end);
    }
    CHECK(book.may_start("t", 17 * kSecond).retry_after_ms == Approx(4000));
    CHECK(book.may_start("t", 20 * kSecond).retry_after_ms == Approx(1000));
    CHECK(book.may_start("t", 30 * kSecond).retry_after_ms == Approx(4000));    // overdue: any moment now
    book.refused("t");
    book.started("t", 20 * kSecond);
    CHECK(book.may_start("t", 20 * kSecond).retry_after_ms == Approx(1000));
    // Requests that follow one another after a pause teach nothing of the pause.
    for (int i = 0; i < 3; ++i) book.ended("t", 21 * kSecond);
    const double before = [&] {
        TenantBook copy = book;
        for (int i = 0; i < 3; ++i) copy.started("t", 22 * kSecond);
        return copy.may_start("t", 22 * kSecond).retry_after_ms;
    }();
    for (int i = 0; i < 3; ++i) book.started("t", 900 * kSecond);
    CHECK(book.may_start("t", 900 * kSecond).retry_after_ms == Approx(before));
}

TEST_CASE("tokens a minute: spent, honest about when again, refilled evenly, never above one minute's worth") {
    TenantBook book(one_tenant());
    CHECK(book.may_start("t", kSecond).kind == TenantBook::Verdict::Kind::yes);
    book.charge("t", 700, kSecond);
    const TenantBook::Verdict spent = book.may_start("t", kSecond);
    REQUIRE(spent.kind == TenantBook::Verdict::Kind::rate_limited);
    // 100 over, ten tokens a second: a little over ten seconds.
    CHECK(spent.retry_after_ms == Approx(10100));
    CHECK(book.may_start("t", 11 * kSecond).kind == TenantBook::Verdict::Kind::rate_limited);
    CHECK(book.may_start("t", 12 * kSecond).kind == TenantBook::Verdict::Kind::yes);
    CHECK(book.may_start("t", 10000 * kSecond).kind == TenantBook::Verdict::Kind::yes);
    book.charge("t", 600, 10000 * kSecond);
    CHECK(book.may_start("t", 10000 * kSecond).kind == TenantBook::Verdict::Kind::rate_limited);
}

TEST_CASE("connections are capped; others are not") {
    TenantBook book(one_tenant());
    CHECK(book.connect("t"));
    CHECK(book.connect("t"));
    CHECK_FALSE(book.connect("t"));
    book.disconnect("t");
    CHECK(book.connect("t"));
    for (int i = 0; i < 100; ++i) CHECK(book.connect(""));
    CHECK(book.may_start("", 0).kind == TenantBook::Verdict::Kind::yes);
}
