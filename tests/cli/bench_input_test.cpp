// What `takt bench` reads and draws from: addresses, arrivals, prompts, server-sent events, the plot.
#include "catch.h"
#include "cli/bench/arrivals.h"
#include "cli/bench/event_lines.h"
#include "cli/bench/plot.h"
#include "cli/bench/url.h"

#include <takt/error.h>

#include <set>

using namespace takt::cli;

TEST_CASE("addresses are taken apart") {
    const BenchUrl ws = parse_bench_url("ws://127.0.0.1:8480");
    CHECK(ws.websocket);
    CHECK(ws.host == "127.0.0.1");
    CHECK(ws.port == "8480");
    CHECK(ws.path == "/v1/stream");
    const BenchUrl six = parse_bench_url("https://[::1]/api/v1/");
    CHECK_FALSE(six.websocket);
    CHECK(six.tls);
    CHECK(six.host == "::1");
    CHECK(six.port == "443");
    CHECK(six.path == "/api/v1");
    CHECK(six.authority() == "[::1]:443");
    CHECK(parse_bench_url("http://host").path == "/v1");
    for (const char* bad : {"", "host:80", "ftp://x", "ws://", "ws://:80", "http://h:", "http://h:123456", "http://h:8x", "ws://[::1",
                            "ws://[::1]x"}) {
        INFO(bad);
        CHECK_THROWS_AS(parse_bench_url(bad), takt::config_error);
    }
}

TEST_CASE("arrivals keep their rate and their seed") {
    const auto fixed = steady_arrivals(5, 4, false, 1, 7, 9);
    CHECK(fixed[4].at_s == Approx(1.0));
    CHECK(fixed[4].prompt_tokens == 7);
    CHECK(fixed[4].max_tokens == 9);
    const auto one = steady_arrivals(20000, 50, true, 3, 1, 1);
    const auto two = steady_arrivals(20000, 50, true, 3, 1, 1);
    const auto other = steady_arrivals(20000, 50, true, 4, 1, 1);
    CHECK(one.back().at_s == two.back().at_s);
    CHECK(one.back().at_s != other.back().at_s);
    CHECK(one.back().at_s == Approx(400).epsilon(0.05));
    double squares = 0;
    for (std::size_t i = 1; i < one.size(); ++i) {
        const double gap = one[i].at_s - one[i - 1].at_s;
        CHECK(gap >= 0);
        squares += gap * gap;
    }
    // Of exponential gaps the mean square is twice the squared mean.
    CHECK(squares / static_cast<double>(one.size()) == Approx(2.0 / (50 * 50)).epsilon(0.1));
}

TEST_CASE("prompts have their length and differ from their first block on") {
    std::set<std::vector<int>> beginnings;
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
        const auto ids = prompt_ids(16, seed);
        REQUIRE(ids.size() == 16);
        beginnings.insert(ids);
        for (const int id : ids) CHECK((id >= 35 && id < 101));
    }
    CHECK(beginnings.size() == 1000);
    CHECK(prompt_words(3, 1) == prompt_words(3, 1));
    CHECK(prompt_words(1, 1).find(' ') == std::string::npos);
}

TEST_CASE("server-sent events are cut wherever the bytes are cut") {
    const std::string bytes = ": comment\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: three\nid: 1\n\n\n\ndata: [DONE]\n\n";
    for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
        EventLines lines;
        std::vector<std::string> found;
        for (std::size_t at = 0; at < bytes.size(); at += piece) {
            lines.feed(std::string_view(bytes).substr(at, piece), [&](std::string_view data) { found.emplace_back(data); });
        }
        CHECK(found == std::vector<std::string>{"one", "two\nthree", "[DONE]"});
    }
}

TEST_CASE("the plot has a dot a place, the promise and the shaded time") {
    GapPanel panel;
    panel.title = "a < b & c";
    panel.promise_ms = 40;
    for (int i = 0; i < 100000; ++i) panel.gaps.push_back({i * 1e-4, 10});
    panel.gaps.push_back({5, 400});
    panel.shaded.emplace_back(4, 5);
    const std::string svg = gap_plot({panel, GapPanel{}});
    CHECK(svg.find("a &lt; b &amp; c") != std::string::npos);
    CHECK(svg.find("promised 40 ms") != std::string::npos);
    CHECK(svg.find("class=\"span\"") != std::string::npos);
    CHECK(svg.find("class=\"late\"") != std::string::npos);
    CHECK(svg.size() < 300000);
    CHECK(svg.find("nan") == std::string::npos);
}
