// See prepare.h. Everything here may take milliseconds (a long prompt, a template): never call it on the engine thread.
#include "runtime/prepare.h"

#include <algorithm>
#include <cmath>
#include <new>

#include <takt/error.h>

namespace takt {
namespace {

constexpr size_t kMaxBiases = 300;   // as many as fit the staging buffer for every running request

std::string number(double v) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", v);
    return text;
}

std::string bound(const char* name, double value, double min, double max) {
    if (std::isfinite(value) && value >= min && value <= max) return {};
    return std::string(name) + " must be from " + number(min) + " to " + number(max) + ", found " + number(value);
}

/// 64-bit FNV-1a with a length frame: names of different lengths never run into one another.
uint64_t domain_hash(std::string_view kind, std::string_view name) {
    uint64_t h = 1469598103934665603ull;
    auto mix = [&](std::string_view text) {
        for (int i = 0; i < 8; ++i) h = (h ^ ((text.size() >> (8 * i)) & 0xff)) * 1099511628211ull;
        for (char ch : text) h = (h ^ static_cast<uint8_t>(ch)) * 1099511628211ull;
    };
    mix(kind);
    mix(name);
    return h;
}

uint64_t mix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

[[noreturn]] void refuse(const std::string& message) {
    throw load_error(errc::bad_request, message);   // its text is the message alone
}

}  // namespace

std::string check_sampling(const SamplingParams& p, int32_t vocab) {
    std::string wrong = bound("temperature", p.temperature, 0, 100);
    if (wrong.empty() && !(p.top_p > 0 && p.top_p <= 1)) wrong = "top_p must be over 0 and at most 1, found " + number(p.top_p);
    if (wrong.empty()) wrong = bound("min_p", p.min_p, 0, 1);
    if (wrong.empty() && p.top_k < -1) wrong = "top_k must be -1 or more, found " + std::to_string(p.top_k);
    if (wrong.empty() && !(p.repetition_penalty > 0 && p.repetition_penalty <= 10)) {
        wrong = "repetition_penalty must be over 0 and at most 10, found " + number(p.repetition_penalty);
    }
    if (wrong.empty()) wrong = bound("presence_penalty", p.presence_penalty, -2, 2);
    if (wrong.empty()) wrong = bound("frequency_penalty", p.frequency_penalty, -2, 2);
    if (wrong.empty() && p.logprobs && (*p.logprobs < 0 || *p.logprobs > 20)) {
        wrong = "logprobs must be from 0 to 20, found " + std::to_string(*p.logprobs);
    }
    if (wrong.empty() && p.logit_bias.size() > kMaxBiases) {
        wrong = "logit_bias may hold " + std::to_string(kMaxBiases) + " ids, found " + std::to_string(p.logit_bias.size());
    }
    for (const auto& [token, bias] : p.logit_bias) {
        if (!wrong.empty()) break;
        if (token < 0 || token >= vocab) {
            wrong = "logit_bias: id " + std::to_string(token) + " is not in the vocabulary of " + std::to_string(vocab);
        } else {
            wrong = bound("logit_bias", bias, -100, 100);
        }
    }
    return wrong;
}

Preparer::Preparer(const LoadedModel& model, const Config& config, const Clock& clock)
    : model_(model), next_seed_(mix64(clock.now_ns() ^ reinterpret_cast<uintptr_t>(this))) {
    class_names_.emplace_back("default");
    for (const SlaClass& c : config.sla.classes) class_names_.push_back(c.name);
    tenant_names_.emplace_back();
    tenant_shares_prefix_.push_back(true);
    tenant_classes_.emplace_back();
    for (const TenantSection& t : config.tenants) {
        tenant_names_.push_back(t.name);
        tenant_shares_prefix_.push_back(t.shared_prefix);
        tenant_classes_.push_back(t.sla_class);
    }
}

uint64_t Preparer::draw_seed() const {
    // 53 bits, so that the reported seed survives JSON readers that keep numbers as doubles.
    return mix64(next_seed_.fetch_add(1, std::memory_order_relaxed)) >> 11;
}

ChatText Preparer::render_chat(const boost::json::array& messages, const boost::json::array* tools,
                               const boost::json::object* arguments) const {
    if (!model_.chat_template) refuse(model_.no_template);
    ChatInput input;
    input.messages = messages;
    if (tools != nullptr) input.tools = *tools;
    if (arguments != nullptr) input.arguments = *arguments;
    if (model_.tokenizer->bos() >= 0) input.bos_token = model_.tokenizer->token_text(model_.tokenizer->bos());
    if (model_.tokenizer->eos() >= 0) input.eos_token = model_.tokenizer->token_text(model_.tokenizer->eos());
    input.now_s = unix_seconds();
    auto rendered = model_.chat_template->render(input);
    if (const auto* error = std::get_if<TemplateError>(&rendered)) {
        refuse(error->kind == TemplateErrorKind::raised ? error->message : "chat template: " + error->message);
    }
    return std::get<ChatText>(std::move(rendered));
}

std::optional<Preparer::Refused> Preparer::fill_tokens(PreparedRequest& out) const {
    Request& r = out.request;
    const int given = (r.prompt ? 1 : 0) + (r.messages ? 1 : 0) + (r.tokens ? 1 : 0);
    if (given != 1) return Refused{errc::bad_request, "exactly one of prompt, messages and tokens is needed"};
    if ((r.tools || r.chat_template_kwargs) && !r.messages) {
        return Refused{errc::bad_request, "tools and chat_template_kwargs go with messages"};
    }
    try {
        if (r.prompt) {
            out.tokens = model_.tokenizer->encode(*r.prompt, {r.parse_special, BosPolicy::unless_present, false});
        } else if (r.messages) {
            const ChatText chat = render_chat(*r.messages, r.tools ? &*r.tools : nullptr,
                                              r.chat_template_kwargs ? &*r.chat_template_kwargs : nullptr);
            out.tokens = model_.tokenizer->encode_pieces(chat.token_pieces());
        } else {
            out.tokens = std::move(*r.tokens);
        }
    } catch (const std::bad_alloc&) {
        return Refused{errc::internal, "out of memory while tokenising"};
    } catch (const boost::system::system_error& error) {
        return Refused{errc::bad_request, error.what()};
    }
    for (int32_t token : out.tokens) {
        if (!model_.tokenizer->contains(token)) {
            return Refused{errc::bad_request, foreign_token(token)};
        }
    }
    if (out.tokens.empty()) return Refused{errc::bad_request, "the prompt has no token"};
    return std::nullopt;
}

std::optional<Preparer::Refused> Preparer::fill_limits(PreparedRequest& out) const {
    const Request& r = out.request;
    const auto prompt = static_cast<int64_t>(out.tokens.size());
    if (prompt >= model_.max_context) {
        return Refused{errc::context_too_long, "the prompt has " + std::to_string(prompt) + " tokens, the context holds " +
                                                   std::to_string(model_.max_context)};
    }
    if (r.max_tokens && *r.max_tokens < 1) {
        return Refused{errc::bad_request, "max_tokens must be 1 or more, found " + std::to_string(*r.max_tokens)};
    }
    const int64_t room = model_.max_context - prompt;
    out.max_tokens = static_cast<int32_t>(r.max_tokens ? std::min<int64_t>(*r.max_tokens, room) : room);
    std::string wrong = check_sampling(r.sampling, model_.tokenizer->vocab_size());
    for (const auto& [name, value] : {std::pair<const char*, std::optional<double>>{"ttft_ms", r.ttft_ms},
                                      {"itl_ms", r.itl_ms}, {"deadline_ms", r.deadline_ms}}) {
        if (wrong.empty() && value) wrong = bound(name, *value, 0.001, 1e9);
    }
    if (!wrong.empty()) return Refused{errc::bad_request, wrong};
    Result<StopStrings> stops = StopStrings::make(r.stop);
    if (!stops) return Refused{errc::bad_request, stops.error()};
    out.stops = std::move(stops).value();
    out.seed = r.sampling.seed ? *r.sampling.seed : draw_seed();
    return std::nullopt;
}

std::optional<Preparer::Refused> Preparer::fill_place(PreparedRequest& out) const {
    const auto tenant = std::find(tenant_names_.begin(), tenant_names_.end(), out.request.tenant);
    if (tenant == tenant_names_.end()) return Refused{errc::unauthorized, "no tenant is named \"" + out.request.tenant + "\""};
    const auto index = static_cast<size_t>(tenant - tenant_names_.begin());
    out.tenant_index = static_cast<int32_t>(index);
    std::string name = !out.request.sla_class.empty() ? out.request.sla_class : tenant_classes_[index];
    if (name.empty()) name = "default";
    const auto found = std::find(class_names_.begin(), class_names_.end(), name);
    if (found == class_names_.end()) {
        std::string known;
        for (const std::string& one : class_names_) known += (known.empty() ? "\"" : ", \"") + one + "\"";
        return Refused{errc::bad_request, "class: found \"" + name + "\", allowed " + known};
    }
    out.class_index = static_cast<int32_t>(found - class_names_.begin());
    // The cache domain is the tenant that the server established; only tenants that share on purpose meet in one.
    const std::string& own = out.request.domain.empty() ? out.request.tenant : out.request.domain;
    out.cache_domain = tenant_shares_prefix_[index] && index != 0 ? domain_hash("shared", "") : domain_hash("tenant", own);
    return std::nullopt;
}

PreparedRequest Preparer::prepare(Request request, uint64_t arrival_ns) const {
    PreparedRequest out;
    out.request = std::move(request);
    out.arrival_ns = arrival_ns;
    std::optional<Refused> refused = fill_place(out);
    if (!refused) refused = fill_tokens(out);
    if (!refused) refused = fill_limits(out);
    if (refused) {
        out.error = refused->error;
        out.message = std::move(refused->message);
    }
    return out;
}

std::string Preparer::foreign_token(int32_t token) const {
    return "token id " + std::to_string(token) + " is not in the vocabulary of " + std::to_string(model_.tokenizer->vocab_size());
}

std::vector<int32_t> Preparer::tokenize(const std::string& text, bool parse_special) const {
    return model_.tokenizer->encode(text, {parse_special, BosPolicy::unless_present, false});
}

std::vector<int32_t> Preparer::tokenize_messages(const boost::json::array& messages) const {
    const ChatText chat = render_chat(messages, nullptr, nullptr);
    return model_.tokenizer->encode_pieces(chat.token_pieces());
}

std::string Preparer::render(const boost::json::array& messages) const {
    return render_chat(messages, nullptr, nullptr).text();
}

std::string Preparer::detokenize(const std::vector<int32_t>& tokens) const {
    for (int32_t token : tokens) {
        if (!model_.tokenizer->contains(token)) refuse(foreign_token(token));
    }
    return model_.tokenizer->decode(tokens, false);
}

}  // namespace takt
