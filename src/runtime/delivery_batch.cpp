// Handing completions over in groups; see delivery_batch.h.
#include "runtime/delivery_batch.h"

#include <boost/asio/append.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <utility>

namespace takt {

namespace net = boost::asio;

namespace {

/// Runs the completions from `next` on. One that throws, out of the user's executor, leaves the rest to another turn of it.
class Run {
public:
    Run(net::any_io_executor executor, std::vector<Delivery> items) : executor_(std::move(executor)), items_(std::move(items)) {}
    Run(Run&&) = default;

    void operator()() {
        while (next_ < items_.size()) {
            Delivery one = std::move(items_[next_++]);
            try {
                net::dispatch(executor_, net::append(std::move(one.handler), one.error, std::move(one.chunk)));
            } catch (...) {
                net::any_io_executor executor = executor_;
                net::post(executor, std::move(*this));
                throw;
            }
        }
    }

private:
    net::any_io_executor executor_;
    std::vector<Delivery> items_;
    size_t next_ = 0;
};

}  // namespace

DeliveryBatch::DeliveryBatch(net::any_io_executor executor) : executor_(std::move(executor)) {}

DeliveryBatch::~DeliveryBatch() { flush(); }

void DeliveryBatch::add(Delivery delivery) {
    items_.push_back(std::move(delivery));
    if (items_.size() >= kMaxItems) flush();
}

void DeliveryBatch::flush() {
    if (items_.empty()) return;
    net::post(executor_, Run(executor_, std::exchange(items_, {})));
}

}  // namespace takt
