// One round of the insertion test.
#include "cli/bench/insertion.h"

namespace takt::cli {

namespace {

using Runs = std::vector<std::shared_ptr<LoadRun>>;

// Until every run has `count` tokens more than `base`, or has ended.
asio::awaitable<void> wait_for_tokens(const Runs& runs, std::vector<std::int64_t> base, std::int64_t count) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
        while (!runs[i]->done && runs[i]->sample.output_tokens < base[i] + count) co_await runs[i]->changed.wait();
    }
}

std::vector<std::int64_t> counts(const Runs& runs) {
    std::vector<std::int64_t> out;
    for (const auto& run : runs) out.push_back(run->sample.output_tokens);
    return out;
}

}  // namespace

asio::awaitable<InsertRound> run_insertion(LoadRunner& runner, LoadClient& client, InsertionPlan plan) {
    InsertRound out;
    Runs streams;
    for (int i = 0; i < plan.num_streams; ++i) streams.push_back(runner.start(client, plan.stream));
    std::vector<std::int64_t> base(streams.size(), 0);
    co_await wait_for_tokens(streams, base, 2);
    out.plain_begin_s = runner.now_s();
    base = counts(streams);
    co_await wait_for_tokens(streams, base, plan.plain_tokens);
    out.settled_s = runner.now_s();
    std::shared_ptr<LoadRun> inserted = runner.start(client, plan.inserted);
    while (!inserted->done) co_await inserted->changed.wait();
    // A token more of each, so that the gap in which the prompt was finished has its end.
    base = counts(streams);
    co_await wait_for_tokens(streams, base, 1);
    for (const auto& stream : streams) stream->stop();
    co_await runner.idle();
    for (const auto& stream : streams) out.streams.push_back(std::move(stream->sample));
    out.inserted = std::move(inserted->sample);
    co_return out;
}

}  // namespace takt::cli
