// DeliveryQueue: the order of completions, and looking out for them turn by turn.
#include "runtime/delivery_queue.h"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "catch.h"
#include "runtime/thread_placement.h"

using takt::Chunk;
using takt::DeliveryQueue;

namespace {

DeliveryQueue::Item item_that(std::vector<int>& out, int number) {
    DeliveryQueue::Handler handler([&out, number](boost::system::error_code, std::optional<Chunk>) { out.push_back(number); });
    return {std::move(handler), {}, {}, std::nullopt, {}};
}

}  // namespace

TEST_CASE("completions and actions come in the order in which they were added", "[runtime]") {
    boost::asio::io_context io(1);
    const auto queue = std::make_shared<DeliveryQueue>(io.get_executor());
    std::vector<int> seen, expected;
    for (int i = 0; i < 20; ++i) {
        queue->add(item_that(seen, i));
        expected.push_back(i);
    }
    queue->add_action([&seen] { seen.push_back(20); });
    expected.push_back(20);
    CHECK(seen.empty());
    io.run();
    CHECK(seen == expected);
    CHECK(queue->thread_id() == takt::this_thread_id());
}

TEST_CASE("a watched queue comes to look until it is told otherwise", "[runtime]") {
    boost::asio::io_context io(1);
    const auto queue = std::make_shared<DeliveryQueue>(io.get_executor());
    std::vector<int> seen;
    CHECK_FALSE(queue->is_awaited());
    queue->watch(true);
    CHECK(queue->is_awaited());
    for (int turn = 0; turn < 100; ++turn) REQUIRE(io.run_one() == 1);   // never out of work, and nothing to do
    CHECK(seen.empty());
    CHECK_FALSE(queue->is_awaited());
    queue->add(item_that(seen, 1));
    for (int turn = 0; turn < 100; ++turn) REQUIRE(io.run_one() == 1);
    CHECK(seen == std::vector<int>{1});
    queue->watch(true);                                                  // again: still one look-out
    queue->watch(false);
    CHECK(io.run() <= 2);
    queue->add(item_that(seen, 2));
    io.restart();
    io.run();
    CHECK(seen == std::vector<int>{1, 2});
}
