// Request state: sampling fields in the device's form, and the hand-over of turns.
#include "runtime/request.h"

#include <algorithm>

#include "kernels/assert.h"

namespace takt {
namespace {

constexpr size_t kLineBytes = 64;

SampleInput sample_of(const SamplingParams& p, uint64_t seed) {
    SampleInput s;
    s.temperature = static_cast<float>(p.temperature);
    s.top_p = static_cast<float>(p.top_p);
    s.min_p = static_cast<float>(p.min_p);
    s.top_k = p.top_k > 0 ? p.top_k : 0;
    s.repetition_penalty = static_cast<float>(p.repetition_penalty);
    s.presence_penalty = static_cast<float>(p.presence_penalty);
    s.frequency_penalty = static_cast<float>(p.frequency_penalty);
    s.num_logprobs = p.logprobs ? *p.logprobs : -1;
    const bool penalised = p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0;
    s.uses_counts = penalised ? 1 : 0;
    s.seed = seed;
    return s;
}

}  // namespace

RequestState::RequestState(RequestId request_id, PreparedRequest prepared, Detokenizer detok,
                           std::shared_ptr<TokenStream> token_stream)
    : id(request_id),
      spec(std::move(prepared)),
      tokens(std::move(spec.tokens)),
      num_prompt(static_cast<int32_t>(tokens.size())),
      detokenizer(std::move(detok)),
      stream(std::move(token_stream)),
      sample(sample_of(spec.request.sampling, spec.seed)) {
    for (const auto& [token, bias] : spec.request.sampling.logit_bias) {
        biases.push_back({token, static_cast<float>(bias)});
    }
    sample.num_biases = static_cast<int32_t>(biases.size());
    // Reserved once, so that the scheduler's view of the prompt stays valid while outputs are appended.
    tokens.reserve(tokens.size() + static_cast<size_t>(spec.max_tokens) + 1);
}

bool RequestState::is_greedy() const {
    return sample.temperature == 0.0f && sample.uses_counts == 0 && biases.empty() && sample.num_logprobs < 0;
}

Turn& RequestState::new_turn() {
    TAKT_ASSERT(num_turns_ < turns_.size());
    return turns_[(first_turn_ + num_turns_++) % turns_.size()];
}

void RequestState::wake(std::vector<Waiter>& woken) {
    if (!waiter_) return;
    woken.push_back(std::move(*waiter_));
    waiter_.reset();
}

const Turn& RequestState::take_turn() {
    const Turn& turn = turns_[first_turn_];
    first_turn_ = (first_turn_ + 1) % static_cast<uint32_t>(turns_.size());
    --num_turns_;
    return turn;
}

void RequestState::prefetch() const {
    const auto* line = reinterpret_cast<const char*>(this);
    for (size_t at = 0; at < sizeof(*this); at += kLineBytes) __builtin_prefetch(line + at, 1);
}

void RequestState::prefetch_parts() const {
    const auto* line = reinterpret_cast<const char*>(stream.get());
    for (size_t at = 0; at < sizeof(TokenStream); at += kLineBytes) __builtin_prefetch(line + at, 1);
    __builtin_prefetch(tokens.data() + tokens.size(), 1);
    __builtin_prefetch(gaps_ns.data() + gaps_ns.size(), 1);
}

void RequestState::note_gap(uint64_t gap_ns) {
    max_gap_ns = std::max(max_gap_ns, gap_ns);
    ++num_gaps_;
    // Beyond the bound every n-th gap overwrites the ring: the median of a long answer needs no more.
    if (gaps_ns.size() < kMaxGaps) {
        gaps_ns.push_back(gap_ns);
    } else {
        gaps_ns[num_gaps_ % kMaxGaps] = gap_ns;
    }
}

RequestResult RequestState::result(uint64_t now_ns) const {
    auto ms = [](uint64_t from, uint64_t to) { return from != 0 && to > from ? static_cast<double>(to - from) * 1e-6 : 0.0; };
    RequestResult r;
    r.reason = reason;
    r.seed = spec.seed;
    r.usage.prompt_tokens = num_prompt;
    r.usage.completion_tokens = num_outputs();
    r.usage.cached_tokens = cached_tokens;
    r.timings.queue_ms = ms(spec.arrival_ns, admitted_ns != 0 ? admitted_ns : now_ns);
    r.timings.ttft_ms = ms(spec.arrival_ns, first_token_ns);
    r.timings.prefill_ms = ms(admitted_ns, first_token_ns);
    r.timings.decode_ms = ms(first_token_ns, last_token_ns);
    r.timings.itl_max_ms = static_cast<double>(max_gap_ns) * 1e-6;
    if (!gaps_ns.empty()) {
        std::vector<uint64_t> sorted = gaps_ns;
        const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);   // the nearest rank
        std::nth_element(sorted.begin(), middle, sorted.end());
        r.timings.itl_p50_ms = static_cast<double>(*middle) * 1e-6;
    }
    r.timings.preemptions = num_preemptions;
    return r;
}

}  // namespace takt
