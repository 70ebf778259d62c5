// Figures of a load run, against hand-made samples whose values are known.
#include "catch.h"
#include "cli/bench/figures.h"

using namespace takt::cli;

namespace {

// Due at `due`, first token `ttft_ms` later, then the gaps.
RequestSample sample(double due, double ttft_ms, const std::vector<double>& gaps_ms) {
    RequestSample out;
    out.due_s = due;
    out.sent_s = due + 0.001;
    out.prompt_tokens = 10;
    double now = due + ttft_ms / 1e3;
    out.add_tokens(1, now);
    for (const double gap : gaps_ms) out.add_tokens(1, now += gap / 1e3);
    out.end_s = now;
    out.reason = "length";
    return out;
}

}  // namespace

TEST_CASE("tokens of one frame are a gap and zeros") {
    RequestSample s;
    s.add_tokens(2, 1.0);
    s.add_tokens(3, 1.5);
    s.add_tokens(0, 1.7);
    CHECK(s.output_tokens == 5);
    CHECK(s.num_frames == 2);
    REQUIRE(s.gaps.size() == 4);
    CHECK(s.gaps[0].gap_ms == 0);
    CHECK(s.gaps[1].gap_ms == Approx(500));
    CHECK(s.gaps[2].gap_ms == 0);
    CHECK(s.first_s == 1.0);
    CHECK(s.last_s == 1.5);
}

TEST_CASE("lateness is the share over the promise and what lies over it") {
    const RequestSample s = sample(0, 5, {10, 50, 40, 60});
    Targets targets;
    targets.itl_ms = 40.001;
    const Lateness late = lateness(judged_gaps(s, targets));
    CHECK(late.num_gaps == 4);
    CHECK(late.share == Approx(0.5));
    CHECK(late.ms_per_1000_tokens == Approx((9.999 + 19.999) / 4 * 1000));
    CHECK(lateness({}).share == 0);
}

TEST_CASE("in an envelope a stream lends its lead, three gaps at most, and who is behind has the gap alone") {
    Targets targets;
    targets.itl_ms = 40;
    targets.envelope = true;
    // Leads before each gap, in ms: 0, 30, 0.1, -10.9, -0.9.
    const RequestSample s = sample(0, 5, {10, 69.9, 51, 30, 41});
    const std::vector<JudgedGap> judged = judged_gaps(s, targets);
    REQUIRE(judged.size() == 5);
    const double allowed[] = {40, 70, 40.1, 40, 40};
    for (size_t i = 0; i < judged.size(); ++i) CHECK(judged[i].allowed_ms == Approx(allowed[i]));
    CHECK(lateness(judged).share == Approx(0.4));
    CHECK(lateness(judged).ms_per_1000_tokens == Approx((51 - 40.1 + 1) / 5 * 1000));
    const RequestSample far_ahead = sample(0, 5, {1, 1, 1, 1, 1, 1, 119, 121});
    CHECK(lateness(judged_gaps(far_ahead, targets)).share == Approx(1.0 / 8));
    CHECK(point_figures({s}, targets).goodput_share == 0);
    CHECK(point_figures({sample(0, 5, {10, 69.9, 30})}, targets).goodput_share == 1);
    targets.envelope = false;
    CHECK(lateness(judged_gaps(s, targets)).share == Approx(0.6));
}

TEST_CASE("a point's figures") {
    Targets targets;
    targets.itl_ms = 30;
    targets.ttft_ms = 150;
    std::vector<RequestSample> samples;
    samples.push_back(sample(0, 100, {20, 20, 20, 20}));       // good
    samples.push_back(sample(0.1, 200, {20, 20}));             // first token late
    samples.push_back(sample(0.2, 100, {5, 50, 5}));           // one gap late, mean in time
    RequestSample refused;
    refused.due_s = 0.3;
    refused.end_s = 0.3;
    refused.error = "queue_full";
    samples.push_back(refused);
    const PointFigures f = point_figures(samples, targets);
    CHECK(f.num_requests == 4);
    CHECK(f.num_done == 3);
    CHECK(f.errors.at("queue_full") == 1);
    CHECK(f.ttft_ms.count == 3);
    CHECK(f.ttft_ms.p50 == Approx(100));
    CHECK(f.ttft_ms.max == Approx(200));
    CHECK(f.itl_ms.count == 9);
    CHECK(f.tpot_ms.count == 3);
    CHECK(f.tpot_ms.p50 == Approx(20));
    CHECK(f.late.share == Approx(1.0 / 9));
    CHECK(f.output_tokens == 12);
    CHECK(f.prefill_tokens == 30);
    CHECK(f.seconds == Approx(0.36));
    CHECK(f.output_tokens_per_s == Approx(12 / 0.36));
    CHECK(f.goodput_per_s == Approx(1 / 0.36));
    CHECK(f.goodput_share == Approx(0.25));
    CHECK(f.goodput_tpot_share == Approx(0.5));
    CHECK(f.send_lag_ms.count == 4);
}

TEST_CASE("an insertion counts the gaps while the prompt is unfinished, the last one whole") {
    InsertRound round;
    // A token each 10 ms from 1.0 s; the prompt is put in at 1.105 s and its first token comes at 1.255 s.
    RequestSample stream = sample(0.99, 10, std::vector<double>(10, 10));     // to 1.10 s
    double now = 1.10;
    for (const double gap : {20.0, 30.0, 30.0, 30.0, 100.0, 10.0}) stream.add_tokens(1, now += gap / 1e3);
    round.streams.push_back(stream);
    round.plain_begin_s = 1.0;
    round.settled_s = 1.105;
    round.inserted = sample(1.105, 150, {10});
    round.inserted.sent_s = 1.105;
    round.inserted.prompt_tokens = 300;
    const InsertFigures f = insert_figures({round}, Targets());
    CHECK(f.outlived);
    CHECK(f.plain_itl_ms.count == 10);
    CHECK(f.plain_itl_ms.p50 == Approx(10));
    // 20 30 30 30 end inside; the 100 ms gap began before the first token came and ends after it.
    CHECK(f.late_inside.num_gaps == 4);
    CHECK(f.late_inside.share == 0);
    CHECK(f.itl_ms.count == 5);
    CHECK(f.late.share == Approx(0.2));
    CHECK(f.ttft_ms.p50 == Approx(150));
    CHECK(f.prefill_tokens_per_s == Approx(2000));
    round.inserted.first_s = 2.0;
    CHECK_FALSE(insert_figures({round}, Targets()).outlived);
}

TEST_CASE("what a token takes plainly is right where frames bring several") {
    InsertRound round;
    round.plain_begin_s = 1.0;
    round.settled_s = 1.1;
    RequestSample several, single;
    double now = 0.9;
    several.add_tokens(4, now);
    single.add_tokens(1, now);
    for (const int count : {4, 8, 4, 2, 4}) several.add_tokens(count, now += 0.010 * count);    // the last comes after the plain phase
    now = 1.0;
    for (int i = 0; i < 5; ++i) single.add_tokens(1, now += 0.010);
    round.streams = {several};
    InsertFigures f = insert_figures({round}, Targets());
    CHECK(f.plain_itl_ms.p50 == 0);
    CHECK(f.plain_token_ms.p50 == Approx(10));
    CHECK(f.plain_token_ms.count == f.plain_itl_ms.count);
    round.streams = {single};
    f = insert_figures({round}, Targets());
    CHECK(f.plain_token_ms.p50 == f.plain_itl_ms.p50);
}
