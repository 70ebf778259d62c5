// LoadRunner: sends requests in a closed loop (so many at once), in an open loop (at given times, whatever the server
// does), or one by one, and gathers their samples. The bench's one thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <set>
#include <vector>

#include "cli/bench/arrivals.h"
#include "cli/bench/load_client.h"
#include "server/task_group.h"

namespace takt::cli {

class LoadRunner {
public:
    LoadRunner(asio::io_context& io, std::uint64_t origin_ns);

    /// Starts a request that is due now. The client must outlive it.
    std::shared_ptr<LoadRun> start(LoadClient& client, LoadRequest request);
    /// `count` requests like `model`, `concurrency` of them at a time.
    asio::awaitable<std::vector<RequestSample>> closed(LoadClient& client, int concurrency, int count, LoadRequest model);
    /// A request at each arrival's time. The arrivals must outlive the call.
    asio::awaitable<std::vector<RequestSample>> open(LoadClient& client, const std::vector<BenchArrival>& arrivals, LoadRequest model);
    /// Resumes once nothing is under way.
    asio::awaitable<void> idle() { return tasks_.empty(); }

    /// Starts nothing more and breaks off what is under way.
    void interrupt();
    [[nodiscard]] bool interrupted() const { return interrupted_; }
    [[nodiscard]] double now_s() const { return bench_seconds(origin_ns_); }

private:
    std::shared_ptr<LoadRun> make_run(double due_s);
    asio::awaitable<void> follow(LoadClient& client, LoadRequest request, std::shared_ptr<LoadRun> run);
    asio::awaitable<void> work(LoadClient& client, int& left, LoadRequest model, std::vector<std::shared_ptr<LoadRun>>& runs);

    asio::io_context& io_;
    std::uint64_t origin_ns_;
    std::uint64_t next_seed_ = 0;
    bool interrupted_ = false;
    std::set<std::shared_ptr<LoadRun>> running_;
    std::exception_ptr problem_;
    server::TaskGroup tasks_;
};

}  // namespace takt::cli
