// Sampling on the CPU device, in the contract's order: logit bias, repetition penalty, presence and frequency, temperature, top_k,
// top_p, min_p; then the inverse distribution function over the kept tokens in ascending id. Log-probabilities are those of the
// raw logits. The threads of an item share the samples; a sample is one thread's work.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/row_block.h"
#include "kernels/cpu/stream.h"
#include "kernels/philox.h"

namespace takt::cpu {
namespace {

struct Candidate {
    float value;     // logit after temperature
    int32_t token;
};

bool is_better(const Candidate& a, const Candidate& b) { return a.value > b.value || (a.value == b.value && a.token < b.token); }

/// A thread's workspace for one sample.
struct Workspace {
    float* values;           // [vocab] adjusted logits
    Candidate* candidates;   // [vocab]
};

void apply_updates(const SampleParams& p) {
    const auto vocab = static_cast<size_t>(p.vocab);
    for (int32_t i = 0; i < p.in.header->num_updates; ++i) {
        const CountUpdate& u = p.in.updates[i];
        uint16_t* counts = p.output_counts + static_cast<size_t>(u.slot) * vocab;
        uint8_t* seen = p.prompt_seen + static_cast<size_t>(u.slot) * vocab;
        if (u.token < 0) {
            std::memset(counts, 0, vocab * sizeof(uint16_t));
            std::memset(seen, 0, vocab);
        } else if (u.is_output != 0) {
            counts[u.token] = static_cast<uint16_t>(std::min(65535, counts[u.token] + 1));
        } else {
            seen[u.token] = 1;
        }
    }
}

void adjust(const SampleParams& p, const SampleInput& s, float* values) {
    for (int32_t i = 0; i < s.num_biases; ++i) {
        const BiasInput& b = p.in.biases[s.bias_begin + i];
        values[b.token] += b.bias;
    }
    if (s.uses_counts == 0) return;
    const uint16_t* counts = p.output_counts + static_cast<size_t>(s.slot) * static_cast<size_t>(p.vocab);
    const uint8_t* seen = p.prompt_seen + static_cast<size_t>(s.slot) * static_cast<size_t>(p.vocab);
    for (int32_t t = 0; t < p.vocab; ++t) {
        if (counts[t] == 0 && seen[t] == 0) continue;
        float& v = values[t];
        v = v > 0 ? v / s.repetition_penalty : v * s.repetition_penalty;
        if (counts[t] > 0) v -= s.presence_penalty + s.frequency_penalty * static_cast<float>(counts[t]);
    }
}

/// The nucleus: from the best downwards until `top_p` of the mass is in. Candidates come out sorted.
int32_t cut_top_p(Candidate* c, int32_t count, float top_p, float largest) {
    double total = 0;
    for (int32_t i = 0; i < count; ++i) total += std::exp(static_cast<double>(c[i].value - largest));
    // All tokens below this together hold less than 1 - top_p: none of them can be needed.
    const double least = (1.0 - static_cast<double>(top_p)) * total / count;
    auto* end = std::partition(c, c + count, [&](const Candidate& x) {
        return std::exp(static_cast<double>(x.value - largest)) >= least || x.value == largest;
    });
    std::sort(c, end, is_better);
    double sum = 0;
    for (auto* at = c; at != end; ++at) {
        sum += std::exp(static_cast<double>(at->value - largest));
        if (sum >= static_cast<double>(top_p) * total) return static_cast<int32_t>(at - c) + 1;
    }
    return static_cast<int32_t>(end - c);
}

int32_t draw(const SampleInput& s, Candidate* c, int32_t count, float largest) {
    std::sort(c, c + count, [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
    double total = 0;
    for (int32_t i = 0; i < count; ++i) total += std::exp(static_cast<double>(c[i].value - largest));
    const double point = sampling_uniform(s.seed, s.position) * total;
    double sum = 0;
    for (int32_t i = 0; i < count; ++i) {
        sum += std::exp(static_cast<double>(c[i].value - largest));
        if (point < sum) return c[i].token;
    }
    return c[count - 1].token;   // rounding at the far end
}

int32_t choose(const SampleParams& p, const SampleInput& s, const Workspace& w, const KernelTable& kernels) {
    bool finite = true;
    if (s.temperature == 0.0f) return static_cast<int32_t>(kernels.argmax(w.values, p.vocab, &finite));
    for (int32_t t = 0; t < p.vocab; ++t) w.candidates[t] = {w.values[t] / s.temperature, t};
    int32_t count = p.vocab;
    if (s.top_k > 0 && s.top_k < count) {
        std::nth_element(w.candidates, w.candidates + s.top_k - 1, w.candidates + count, is_better);
        count = s.top_k;
    }
    float largest = w.candidates[0].value;
    for (int32_t i = 1; i < count; ++i) largest = std::max(largest, w.candidates[i].value);
    // A temperature near the smallest float takes a logit out of its range; the limit it stands for is the argmax.
    if (!std::isfinite(largest)) return static_cast<int32_t>(kernels.argmax(w.values, p.vocab, &finite));
    if (s.top_p < 1.0f) count = cut_top_p(w.candidates, count, s.top_p, largest);
    if (s.min_p > 0.0f) {
        const double least = static_cast<double>(s.min_p);
        auto* end = std::partition(w.candidates, w.candidates + count, [&](const Candidate& x) {
            return std::exp(static_cast<double>(x.value - largest)) >= least;
        });
        count = static_cast<int32_t>(end - w.candidates);
    }
    return draw(s, w.candidates, count, largest);
}

void log_probabilities(const SampleParams& p, const SampleInput& s, const float* logits, const Workspace& w,
                       const KernelTable& kernels, SampleResult& out) {
    bool finite = true;
    const float largest = logits[kernels.argmax(logits, p.vocab, &finite)];
    const double log_total = static_cast<double>(largest) + std::log(kernels.sum_exp(logits, p.vocab, largest));
    out.logprob = static_cast<float>(static_cast<double>(logits[out.token]) - log_total);
    out.num_top = std::max(0, std::min(s.num_logprobs, std::min(kMaxTopLogprobs, p.vocab)));
    if (out.num_top == 0) return;
    for (int32_t t = 0; t < p.vocab; ++t) w.candidates[t] = {logits[t], t};
    std::partial_sort(w.candidates, w.candidates + out.num_top, w.candidates + p.vocab, is_better);
    for (int32_t i = 0; i < out.num_top; ++i) {
        out.top_tokens[i] = w.candidates[i].token;
        out.top_logprobs[i] = static_cast<float>(static_cast<double>(w.candidates[i].value) - log_total);
    }
}

void sample_one(const SampleParams& p, int32_t index, const Workspace& w, const KernelTable& kernels, SampleResult& out) {
    const SampleInput& s = p.in.samples[index];
    const float* logits = p.logits + index * p.vocab_stride;
    out = SampleResult{};
    bool finite = true;
    const auto best = static_cast<int32_t>(kernels.argmax(logits, p.vocab, &finite));
    if (!finite) {
        out.flags = kSampleNonFinite;
        out.token = 0;
        p.slot_tokens[s.slot] = 0;
        return;
    }
    if (p.greedy_only) {
        out.token = best;
    } else {
        std::memcpy(w.values, logits, static_cast<size_t>(p.vocab) * sizeof(float));
        adjust(p, s, w.values);
        out.token = choose(p, s, w, kernels);
        if (s.num_logprobs >= 0) log_probabilities(p, s, logits, w, kernels, out);
        if (s.uses_counts != 0) {
            uint16_t& count = p.output_counts[static_cast<size_t>(s.slot) * static_cast<size_t>(p.vocab) + static_cast<size_t>(out.token)];
            count = static_cast<uint16_t>(std::min(65535, count + 1));
        }
    }
    p.slot_tokens[s.slot] = out.token;
}

void run_sample(TaskContext& context, const void* data) {
    const auto& p = *static_cast<const SampleParams*>(data);
    const KernelTable& kernels = kernel_table(context.isa);
    const StepHeader& header = *p.in.header;
    auto* block = static_cast<uint8_t*>(p.results) + static_cast<size_t>(header.result_index) * p.result_stride;
    if (context.thread == 0) reinterpret_cast<StepResultHeader*>(block)->step = header.step;
    auto* results = reinterpret_cast<SampleResult*>(block + sizeof(StepResultHeader));
    if (header.num_updates > 0) {
        if (context.thread == 0) apply_updates(p);
        context.barrier();
    }
    Workspace w{};
    if (!p.greedy_only) {
        const auto vocab = static_cast<size_t>(p.vocab);
        auto* memory = static_cast<uint8_t*>(context.scratch(vocab * (sizeof(float) + sizeof(Candidate))));
        if (memory == nullptr) return;
        w.candidates = reinterpret_cast<Candidate*>(memory);
        w.values = reinterpret_cast<float*>(memory + vocab * sizeof(Candidate));
    }
    for (int32_t i = context.thread; i < header.num_samples; i += context.num_threads) {
        sample_one(p, i, w, kernels, results[i]);
    }
}

}  // namespace

Status op_sample(Stream& stream, const SampleParams& params) {
    return static_cast<CpuStream&>(stream).enqueue(run_sample, params);
}

size_t sample_workspace_bytes(const Device&, int32_t, int32_t) { return 0; }   // the threads' own scratch

}  // namespace takt::cpu
