// The Responses dialect over one WebSocket. Server thread.
#include "server/responses_session.h"

#include <utility>

#include "server/clock.h"

namespace takt::server {

namespace json = boost::json;

namespace {
constexpr std::size_t kMaxEnding = 256;           // ended responses of a socket that may wait for it
}  // namespace

struct ResponsesSession::Lane {
    Lane(ServerState& state, const Identity& identity, const asio::any_io_executor& executor)
        : generation(state, identity, executor), slot(executor) {}

    std::string name;
    Generation generation;
    Outbox::Slot slot;
};

ResponsesSession::ResponsesSession(ServerState& state, WsSocket& socket, Identity identity)
    : state_(state),
      socket_(socket),
      identity_(std::move(identity)),
      outbox_(socket),
      reader_slot_(socket.executor()),
      responses_(socket.executor(),
                 [&state](std::exception_ptr) { state.log(LogLevel::error, "a response ended by an exception"); }),
      helpers_(socket.executor(),
               [&state](std::exception_ptr) { state.log(LogLevel::error, "a writer ended by an exception"); }) {}

asio::awaitable<void> ResponsesSession::run() {
    co_await read_loop();
    closed_ = true;
    outbox_.fail();
    // A peer that is gone, or that closed and does not read, would hold a write for ever.
    if (outbox_.busy()) socket_.abort();
    for (const auto& entry : lanes_) entry.second->generation.cancel();
    co_await responses_.empty();
    co_await helpers_.empty();
}

void ResponsesSession::wind_down() {
    if (std::exchange(winding_down_, true) || closed_) return;
    helpers_.spawn(close_when_idle());
}

asio::awaitable<void> ResponsesSession::close_when_idle() {
    co_await responses_.empty();
    if (closed_) co_return;
    co_await socket_.close(CloseCode::going_away);
}

asio::awaitable<void> ResponsesSession::read_loop() {
    for (;;) {
        WsMessage message = co_await socket_.read();
        if (message.kind == WsMessage::Kind::closed) co_return;
        // This dialect's clients may send their JSON as text or as binary.
        co_await handle(std::move(message.data));
    }
}

asio::awaitable<void> ResponsesSession::refuse(Failure failure, const std::string* stream_id) {
    state_.count_refusal(failure.code);
    const ErrorInfo info = error_info(failure.code);
    std::string frame = response_error_frame(info.http_status, info.code, failure.message, failure.param, stream_id);
    co_await outbox_.send(reader_slot_, std::move(frame));
}

asio::awaitable<void> ResponsesSession::handle(std::string text) {
    const std::function<ResponseRequest()> parse = [this, &text] { return parse_response_frame(text, state_.model_name); };
    ResponseRequest request = co_await on_worker_if_long<ResponseRequest>(state_, text.size(), parse);
    co_await create(std::move(request));
}

Failure ResponsesSession::cannot_start(const ResponseRequest& request) const {
    Failure out;
    if (request.error) {
        out = request.error;
    } else if (winding_down_) {
        out = drain_failure(state_);
    } else if (lanes_.find(request.stream_id) != lanes_.end()) {
        out.code = errc::bad_request;
        out.message = request.stream_id.empty() ? "a response is live on this lane: wait for its end or name a stream_id"
                                                : "a response is live on lane " + request.stream_id;
    }
    return out;
}

asio::awaitable<void> ResponsesSession::create(ResponseRequest request) {
    const std::string stream_id = request.stream_id;
    const std::string* lane_name = request.has_stream_id ? &stream_id : nullptr;
    Failure failure = cannot_start(request);
    json::array turns;
    if (!failure && request.previous_id) {
        std::optional<json::array> found = conversations_.find(*request.previous_id);
        if (found) {
            turns = std::move(*found);
        } else {
            failure.code = errc::not_found;
            failure.message = "previous_response_id: no such response on this connection";
            failure.param = "previous_response_id";
        }
    }
    if (failure) {
        co_await refuse(std::move(failure), lane_name);
        co_return;
    }
    prepend_turns(request, turns);
    // Refused and finished responses wait for the socket with their last events: a client that does not read is read no further.
    while (responses_.size() >= lanes_.size() + kMaxEnding) co_await responses_.one_end();
    auto lane = std::make_shared<Lane>(state_, identity_, socket_.executor());
    lane->name = request.stream_id;
    lanes_[lane->name] = lane;
    responses_.spawn(respond(lane, std::move(request)));
}

asio::awaitable<void> ResponsesSession::send_all(Lane& lane, std::vector<ResponseEvent> events) {
    for (ResponseEvent& event : events) {
        std::string data = std::move(event.data);
        co_await outbox_.send(lane.slot, std::move(data));
    }
}

asio::awaitable<void> ResponsesSession::respond_empty(Lane& lane, ResponseRequest& request, ResponseEvents& sequence) {
    std::vector<ResponseEvent> events = sequence.empty(unix_seconds());
    lanes_.erase(request.stream_id);
    co_await send_all(lane, std::move(events));
}

asio::awaitable<void> ResponsesSession::respond(std::shared_ptr<Lane> lane, ResponseRequest request) {
    ResponseHead head;
    head.id = state_.make_id("resp_");
    head.item_id = state_.make_id("msg_");
    head.model = state_.model_name;
    head.created = unix_seconds();
    head.echo = request.echo;
    head.stream_id = request.stream_id;
    head.has_stream_id = request.has_stream_id;
    head.logprobs = request.logprobs;
    const std::string id = head.id;
    ResponseEvents sequence(std::move(head));
    if (!request.generate) {
        conversations_.add(id, request.previous_id, std::move(request.input), std::nullopt);
        co_await respond_empty(*lane, request, sequence);
        co_return;
    }
    std::vector<Request> requests;
    request.request.label = id;
    requests.push_back(std::move(request.request));
    const Failure refused = co_await lane->generation.submit_all(std::move(requests));
    if (refused) {
        lanes_.erase(lane->name);
        const ErrorInfo info = error_info(refused.code);
        std::string frame = response_error_frame(info.http_status, info.code, refused.message, std::string_view(),
                                                 request.has_stream_id ? &request.stream_id : nullptr);
        co_await outbox_.send(lane->slot, std::move(frame));
        co_return;
    }
    std::vector<ResponseEvent> first = sequence.begin();
    co_await send_all(*lane, std::move(first));
    const Generation::Sink sink = [this, &lane, &sequence](Generation::Choice&, Chunk chunk) {
        ResponseEvent event = sequence.delta(chunk);
        return outbox_.send(lane->slot, std::move(event.data));
    };
    co_await lane->generation.run(sink, false);
    const Failure failure = lane->generation.failure();
    std::vector<ResponseEvent> last;
    if (failure) {
        last.push_back(sequence.failed(error_info(failure.code).code, failure.message));
    } else {
        last = sequence.end(lane->generation.choices().front()->result, unix_seconds());
        conversations_.add(id, request.previous_id, std::move(request.input), sequence.text());
    }
    // The lane is free before the terminal event can reach the client, who may reuse it at once.
    lanes_.erase(lane->name);
    co_await send_all(*lane, std::move(last));
}

}  // namespace takt::server
