// Generation: the one to many replies behind one HTTP or Responses request (n choices, several prompts), so that they
// are submitted, read, cancelled and counted as one. Server thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/server_state.h"
#include "server/submission.h"
#include "server/task_group.h"

namespace takt::server {

class Generation {
public:
    Generation(ServerState& state, Identity identity, asio::any_io_executor executor);

    /// One choice's state; `text`, `logprobs` are kept only if asked for at run().
    struct Choice {
        std::size_t index = 0;
        Accepted accepted;
        asio::cancellation_signal cancel_submission;
        std::string text;
        std::vector<TokenLogprob> logprobs;
        Failure failure;
        RequestResult result;
    };

    /// Submits all; on the first refusal the others are cancelled and the failure returned.
    asio::awaitable<Failure> submit_all(std::vector<Request> requests);

    /// What to do with each chunk, in order within a choice. False: the client is gone.
    using Sink = std::function<asio::awaitable<bool>(Choice&, Chunk)>;
    /// Reads all choices to their ends, at once. `keep`: collect text and logprobs too. `sink` may be empty.
    asio::awaitable<void> run(Sink sink, bool keep);

    /// Ends everything; run() returns soon after.
    void cancel();
    [[nodiscard]] const std::vector<std::unique_ptr<Choice>>& choices() const { return choices_; }
    /// The first failure among the choices.
    [[nodiscard]] Failure failure() const;
    [[nodiscard]] Usage usage(std::size_t num_choices_a_prompt) const;

private:
    asio::awaitable<void> submit_one(Choice& choice, Request request);
    asio::awaitable<void> read(Choice& choice, const Sink& sink, bool keep);

    ServerState& state_;
    Identity identity_;
    TaskGroup tasks_;
    std::vector<std::unique_ptr<Choice>> choices_;
    bool cancelled_ = false;
};

}  // namespace takt::server
