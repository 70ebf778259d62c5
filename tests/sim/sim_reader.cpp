// What a client does and how it judges; see sim_reader.h.
#include "sim/sim_reader.h"

#include <algorithm>

#include "sim/engine_sim.h"

namespace takt::engine_sim {

SimReader::SimReader(EngineSim& sim, const SimClient& client, int32_t end_token, int32_t vocab)
    : sim_(sim), client_(client), end_token_(end_token), chain_(client.prompt, client.max_tokens, vocab, end_token) {
    // An answer that would outgrow the pool ends with `length` where the pool is full.
    const int64_t room = static_cast<int64_t>(sim.spec().num_blocks - 1) * sim.spec().block_tokens -
                         static_cast<int64_t>(client.prompt.size());
    const auto most = static_cast<std::ptrdiff_t>(std::clamp<int64_t>(room, 1, client.max_tokens));
    const auto begin = chain_.outputs().begin();
    const auto end = client.ignore_eos ? begin + most : std::find(begin, begin + most, end_token);
    num_expected_ = static_cast<int32_t>(end - begin) + (end == begin + most ? 0 : 1);
    std::string text;
    for (int32_t i = 0; i < num_expected_; ++i) {
        if (chain_.output(i) != end_token) text += static_cast<char>(chain_.output(i));
    }
    const auto at = static_cast<size_t>(client.stop_at);
    if (at > 0 && at + 2 <= text.size()) stop_ = text.substr(at, 2);
    expected_text_ = stop_.empty() ? text : text.substr(0, text.find(stop_));
    unstopped_text_ = std::move(text);
}

PreparedRequest SimReader::prepare() const {
    PreparedRequest p;
    p.tokens = client_.prompt;
    p.max_tokens = client_.max_tokens;
    p.class_index = client_.class_index;
    p.tenant_index = client_.tenant_index;
    p.cache_domain = client_.cache_domain;
    p.seed = 1;
    p.arrival_ns = sim_.now_ns();
    p.request.ignore_eos = client_.ignore_eos;
    p.request.envelope = client_.envelope;
    p.request.sampling.temperature = 0;
    if (client_.has_penalties) p.request.sampling.presence_penalty = 0.5;
    if (client_.has_logprobs) p.request.sampling.logprobs = 2;
    if (client_.itl_ms > 0) p.request.itl_ms = client_.itl_ms;
    if (client_.ttft_ms > 0) p.request.ttft_ms = client_.ttft_ms;
    if (client_.deadline_ms > 0) p.request.deadline_ms = client_.deadline_ms;
    if (!stop_.empty()) p.stops = StopStrings::make({stop_}).value();
    return p;
}

void SimReader::submit() {
    const SubmitOutcome out = sim_.core().submit(prepare(), [sim = &sim_](RequestId id) {
        net::post(sim->io(), [sim, id] { sim->core().resume_reader(id); });
    });
    if (out.error != errc::ok) {
        refused_ = out.error;
        return judge_refusal();
    }
    id_ = out.id;
    stream_ = out.stream;
    sim_.checker().add(id_, client_, chain_, *stream_);
    if (client_.cancel_at == CancelAt::at_once) cancel();
    if (client_.cancel_at == CancelAt::time) {
        sim_.at(sim_.now_ns() + client_.cancel_count, [this] { cancel(); });
    }
    if (client_.reading == Reading::slow) {
        sim_.at(sim_.now_ns() + client_.read_period_ns, [this] { read_turn(); });
    } else {
        read_next();
    }
}

void SimReader::judge_refusal() {
    const SimCase& spec = sim_.spec();
    switch (refused_) {
        case errc::queue_full: break;
        case errc::draining:
            if (spec.drain_ns == 0) fail("refused as draining without a drain");
            break;
        case errc::device_lost:
            if (!sim_.core().device_failed()) fail("refused as device_lost with a sound device");
            break;
        case errc::deadline_unreachable:
            if (spec.scheduler.classes[static_cast<size_t>(client_.class_index)].on_miss != SchedulerClass::OnMiss::refuse) {
                fail("refused as deadline_unreachable in a class that queues");
            }
            break;
        case errc::context_too_long: {
            const auto room = static_cast<int64_t>(spec.num_blocks - 1) * spec.block_tokens;
            if (static_cast<int64_t>(client_.prompt.size()) + 1 <= room) fail("refused as too long and would fit");
            break;
        }
        default: fail("refused with an unexpected code");
    }
}

void SimReader::read_next() {
    stream_->async_next([this](error_code error, std::optional<Chunk> chunk) {
        if (is_gone_) return;   // its own wait, ended by its going
        if (!chunk) return take_end(error);
        take_chunk(*chunk);
        if (num_chunks_ == client_.read_chunks && client_.reading == Reading::leaves) return leave();
        if (num_chunks_ == client_.read_chunks && client_.reading == Reading::stalls) {
            return sim_.at(sim_.now_ns() + client_.read_period_ns, [this] { read_next(); });
        }
        read_next();
    });
}

/// A slow reader's turn: some chunks without waiting, and the end once everything before it was read.
void SimReader::read_turn() {
    for (int32_t i = 0; i < client_.read_chunks; ++i) {
        const std::optional<Chunk> chunk = stream_->try_next();
        if (chunk) {
            take_chunk(*chunk);
        } else if (stream_->has_ended()) {
            return read_next();
        } else {
            break;
        }
    }
    sim_.at(sim_.now_ns() + client_.read_period_ns, [this] { read_turn(); });
}

void SimReader::take_chunk(Chunk chunk) {
    if (sim_.tell_chunk && !sim_.tell_chunk(id_, chunk)) return;
    ++num_chunks_;
    if (num_ends_ > 0) fail("a chunk behind the end");
    if (chunk.index != static_cast<int64_t>(tokens_.size())) fail("invariant 12: a chunk's index does not follow the one before");
    if (client_.has_logprobs && chunk.logprobs.size() != chunk.tokens.size()) fail("log-probabilities are missing");
    tokens_.insert(tokens_.end(), chunk.tokens.begin(), chunk.tokens.end());
    text_ += chunk.text;
    if (chunk.ready_ns > static_cast<int64_t>(sim_.now_ns())) fail("a chunk of the future");
    if (client_.cancel_at == CancelAt::token && tokens_.size() >= client_.cancel_count) plan_cancel();
}

void SimReader::take_end(error_code error) {
    ++num_ends_;
    error_ = error ? static_cast<errc>(error.value()) : errc::ok;
    if (error && error != make_error_code(error_)) fail("an end with a foreign error");
    if (num_ends_ > 1) return;
    end_ns_ = sim_.now_ns();
    read_next();   // asked again it must say the same, once and for ever
}

void SimReader::cancel() {
    if (cancelled_ || stream_ == nullptr) return;
    cancelled_ = true;
    sim_.core().cancel(id_);
}

void SimReader::leave() {
    is_gone_ = true;
    stream_->abandon();
    if (!stream_->has_ended()) cancel();
}

void SimReader::at_gap() {
    if (stream_ == nullptr || cancelled_ || is_gone_) return;
    if (client_.cancel_at == CancelAt::gone && ++num_gaps_ >= client_.cancel_count) return leave();
    if (client_.cancel_at == CancelAt::gap && ++num_gaps_ >= client_.cancel_count) cancel_is_due_ = true;
    if (cancel_is_due_) cancel();
}

void SimReader::step_planned(bool was_preempted) {
    if (client_.cancel_at == CancelAt::planned && ++num_planned_ == client_.cancel_count) plan_cancel();
    if (client_.cancel_at == CancelAt::preempted && was_preempted) plan_cancel();
}

void SimReader::step_applied() {
    if (client_.cancel_at == CancelAt::applied && ++num_applied_ == client_.cancel_count) plan_cancel();
}

std::optional<FinishReason> SimReader::reason() const {
    if (stream_ == nullptr) return std::nullopt;
    const std::optional<RequestResult> result = stream_->result();
    return result ? std::optional(result->reason) : std::nullopt;
}

std::string SimReader::judge_text(FinishReason reason) const {
    const bool is_whole = reason == FinishReason::stop || reason == FinishReason::length;
    for (size_t i = 0; i < tokens_.size(); ++i) {
        if (i >= static_cast<size_t>(num_expected_) || tokens_[i] != chain_.output(static_cast<int32_t>(i))) {
            return "invariant 11: token " + std::to_string(i) + " is not that of the undisturbed answer";
        }
    }
    // Cut short, it may end in what was held back for a stop string that never came.
    if (text_ != unstopped_text_.substr(0, text_.size())) return "invariant 11: another text than the undisturbed answer";
    if (!is_whole) return {};
    if (text_ != expected_text_) return "invariant 12: the answer ended before its text";
    const bool stops = !stop_.empty() || (num_expected_ > 0 && !client_.ignore_eos && chain_.output(num_expected_ - 1) == end_token_);
    if (stops != (reason == FinishReason::stop)) return "the answer ended for another reason than the undisturbed one";
    if (stop_.empty() && static_cast<int32_t>(tokens_.size()) != num_expected_) return "invariant 12: tokens are missing at the end";
    return {};
}

std::string SimReader::judge(bool device_was_lost) const {
    if (!wrong_.empty() || was_refused()) return wrong_;
    if (is_gone_) return judge_text(FinishReason::cancelled);
    if (num_ends_ != 2) return "the end came " + std::to_string(num_ends_) + " times to two questions";
    const RequestResult result = stream_->result().value();
    const bool by_engine = error_ != errc::ok;
    if (by_engine != (result.reason == FinishReason::error)) return "error and reason disagree";
    switch (error_) {
        case errc::ok: break;
        case errc::device_lost:
            if (!device_was_lost) return "ended as device_lost with a sound device";
            break;
        case errc::internal:
            if (sim_.spec().device.nonfinite_samples == 0 && client_.throws_at == 0) return "ended as internal without a fault";
            break;
        case errc::deadline_exceeded:
            if (client_.deadline_ms <= 0) return "ended by a deadline that it does not have";
            break;
        default: return "ended with an unexpected error";
    }
    if (result.reason == FinishReason::cancelled && !cancelled_) return "ended as cancelled and nobody cancelled it";
    if (result.usage.prompt_tokens != static_cast<int64_t>(client_.prompt.size())) return "the usage names another prompt";
    // A token that met an exception was counted and never read.
    if (stop_.empty() && client_.throws_at == 0 && result.usage.completion_tokens != static_cast<int64_t>(tokens_.size())) {
        return "the usage names " + std::to_string(result.usage.completion_tokens) + " tokens, " + std::to_string(tokens_.size()) +
               " were read";
    }
    return judge_text(result.reason);
}

}  // namespace takt::engine_sim
