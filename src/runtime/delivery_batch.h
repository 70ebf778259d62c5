// DeliveryBatch: completions that one turn of the engine's crank makes, handed to the users' executor together: a step that
// brings 64 readers a token wakes their thread a few times instead of 64 times, and contends for its queue as seldom. Engine
// thread; only the handed-over part runs elsewhere.
#pragma once

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <optional>
#include <vector>

#include <takt/error.h>
#include <takt/request.h>

namespace takt {

/// A reader's wait that is over.
struct Delivery {
    boost::asio::any_completion_handler<void(boost::system::error_code, std::optional<Chunk>)> handler;
    boost::asio::any_completion_executor work;   // keeps the handler's executor from running out of work
    boost::system::error_code error;
    std::optional<Chunk> chunk;
};

class DeliveryBatch {
public:
    /// So many at most go together: the first readers do not wait for the last ones' tokens to be looked at.
    static constexpr size_t kMaxItems = 16;

    explicit DeliveryBatch(boost::asio::any_io_executor executor);
    /// What is left goes out.
    ~DeliveryBatch();
    DeliveryBatch(const DeliveryBatch&) = delete;
    DeliveryBatch& operator=(const DeliveryBatch&) = delete;

    void add(Delivery delivery);
    /// Posts what was added; the handlers run there, in order, each on its own associated executor.
    void flush();

private:
    boost::asio::any_io_executor executor_;
    std::vector<Delivery> items_;
};

}  // namespace takt
