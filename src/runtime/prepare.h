// Preparer: makes a PreparedRequest of a Request: checks bounds, renders the chat template, tokenises, resolves class and tenant,
// draws the seed. Const and thread-safe; runs on the tokenising pool, and in the callers of the pure functions of Engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <takt/config.h>
#include <takt/request.h>

#include "runtime/engine_setup.h"
#include "runtime/request.h"

namespace takt {

class Preparer {
public:
    Preparer(const LoadedModel& model, const Config& config, const Clock& clock);

    /// Never fails: a refusal is in `error` and `message`.
    [[nodiscard]] PreparedRequest prepare(Request request, uint64_t arrival_ns) const;

    // @throws boost::system::system_error, errc::bad_request; its text is the message alone.
    [[nodiscard]] std::vector<int32_t> tokenize(const std::string& text, bool parse_special) const;
    [[nodiscard]] std::vector<int32_t> tokenize_messages(const boost::json::array& messages) const;
    [[nodiscard]] std::string render(const boost::json::array& messages) const;
    [[nodiscard]] std::string detokenize(const std::vector<int32_t>& tokens) const;

private:
    struct Refused {
        errc error;
        std::string message;
    };
    std::optional<Refused> fill_tokens(PreparedRequest& out) const;
    std::optional<Refused> fill_limits(PreparedRequest& out) const;
    std::optional<Refused> fill_place(PreparedRequest& out) const;
    [[nodiscard]] ChatText render_chat(const boost::json::array& messages, const boost::json::array* tools,
                                       const boost::json::object* arguments) const;
    [[nodiscard]] std::string foreign_token(int32_t token) const;
    [[nodiscard]] uint64_t draw_seed() const;

    const LoadedModel& model_;
    std::vector<std::string> class_names_;
    std::vector<std::string> tenant_names_;
    std::vector<bool> tenant_shares_prefix_;
    std::vector<std::string> tenant_classes_;
    mutable std::atomic<uint64_t> next_seed_;
};

/// Bounds of contract section 4; empty if all hold, else the sentence.
std::string check_sampling(const SamplingParams& params, int32_t vocab);

}  // namespace takt
