// Sampling against a plain sort in float64: greedy and full paths, top_k, top_p, min_p, penalties, bias,
// log-probabilities, the generator, count updates, non-finite logits, and where the results land.
#include <string>

#include "checks.h"
#include "kernels/cuda/sample.h"
#include "kernels/philox.h"
#include "step_builder.h"

namespace takt::check {
namespace {

struct Candidate {
    float value;   // differences are taken in float32, as the devices do
    int32_t token;
};

struct Fixture {
    int samples, vocab;
    int64_t stride;
    std::vector<float> logits;
    std::vector<uint16_t> counts;
    std::vector<uint8_t> seen;
};

bool is_better(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.token < b.token);
}

int32_t reference_token(const Fixture& f, const StepView& in, int index) {
    const SampleInput& s = in.samples[index];
    std::vector<float> v(f.logits.begin() + index * f.stride, f.logits.begin() + index * f.stride + f.vocab);
    for (int i = 0; i < s.num_biases; ++i)
        v[static_cast<size_t>(in.biases[s.bias_begin + i].token)] += in.biases[s.bias_begin + i].bias;
    for (size_t t = 0; t < v.size() && s.uses_counts != 0; ++t) {
        const size_t at = static_cast<size_t>(s.slot) * static_cast<size_t>(f.vocab) + t;
        if (f.counts[at] == 0 && f.seen[at] == 0) continue;
        v[t] = v[t] > 0 ? v[t] / s.repetition_penalty : v[t] * s.repetition_penalty;
        if (f.counts[at] > 0) v[t] -= s.presence_penalty + s.frequency_penalty * static_cast<float>(f.counts[at]);
    }
    std::vector<Candidate> c;
    for (size_t t = 0; t < v.size(); ++t)
        c.push_back({s.temperature > 0 ? v[t] / s.temperature : v[t], static_cast<int32_t>(t)});
    std::sort(c.begin(), c.end(), is_better);
    if (s.temperature == 0) return c[0].token;
    const float largest = c[0].value;
    if (s.top_k > 0 && static_cast<size_t>(s.top_k) < c.size()) c.resize(static_cast<size_t>(s.top_k));
    double total = 0;
    for (const Candidate& x : c) total += std::exp(static_cast<double>(x.value - largest));
    if (s.top_p < 1) {
        double sum = 0;
        size_t keep = 0;
        while (keep < c.size() && sum < static_cast<double>(s.top_p) * total)
            sum += std::exp(static_cast<double>(c[keep++].value - largest));
        c.resize(std::max<size_t>(keep, 1));
    }
    std::erase_if(c, [&](const Candidate& x) {
        return std::exp(static_cast<double>(x.value - largest)) < static_cast<double>(s.min_p);
    });
    std::sort(c.begin(), c.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
    total = 0;
    for (const Candidate& x : c) total += std::exp(static_cast<double>(x.value - largest));
    const double point = sampling_uniform(s.seed, s.position) * total;
    double sum = 0;
    for (const Candidate& x : c) {
        sum += std::exp(static_cast<double>(x.value - largest));
        if (point < sum) return x.token;
    }
    return c.back().token;
}

void set_parameters(SampleInput& s, int i, std::mt19937_64& random) {
    s.temperature = i % 7 == 3 ? 0.0f : 0.5f + 0.1f * static_cast<float>(i % 11);
    s.top_k = i % 3 == 1 ? 1 + static_cast<int32_t>(random() % 50) : 0;
    s.top_p = i % 4 == 2 || i % 4 == 3 ? 0.5f + 0.04f * static_cast<float>(i % 12) : 1.0f;
    s.min_p = i % 5 == 4 ? 0.05f : 0.0f;
    s.seed = random();
    s.num_logprobs = i % 2 == 0 ? i % 21 : -1;
    if (i % 6 == 5) {
        s.bias_begin = i * 3;
        s.num_biases = 3;
    }
    if (i % 4 == 1) {
        s.uses_counts = 1;
        s.repetition_penalty = 1.3f;
        s.presence_penalty = 0.4f;
        s.frequency_penalty = 0.2f;
    }
}

double check_logprobs(const Fixture& f, const SampleInput& s, int index, const SampleResult& r) {
    float most = -1e30f;
    double total = 0, worst = 0;
    std::vector<Candidate> c;
    for (int t = 0; t < f.vocab; ++t) c.push_back({f.logits[static_cast<size_t>(index * f.stride + t)], t});
    for (const Candidate& x : c) most = std::max(most, x.value);
    for (const Candidate& x : c) total += std::exp(static_cast<double>(x.value - most));
    worst = std::fabs(static_cast<double>(r.logprob) -
                      (static_cast<double>(c[static_cast<size_t>(r.token)].value - most) - std::log(total)));
    std::sort(c.begin(), c.end(), is_better);
    if (r.num_top != s.num_logprobs) return 1e9;
    for (int i = 0; i < r.num_top; ++i) {
        if (r.top_tokens[i] != c[static_cast<size_t>(i)].token) return 1e9;
        worst =
            std::max(worst, std::fabs(static_cast<double>(r.top_logprobs[i]) -
                                      (static_cast<double>(c[static_cast<size_t>(i)].value - most) - std::log(total))));
    }
    return worst;
}

/// Parameters, count updates and biases of every sample; the host's copy of the counts follows.
void fill_step(Bench& bench, Fixture& f, StepBuilder& step, bool greedy) {
    StepView in = step.host();
    in.header->step = 4711;
    in.header->result_index = 1;
    for (int i = 0; i < f.samples; ++i) {
        if (!greedy) set_parameters(in.samples[i], i, bench.random);
        in.updates[in.header->num_updates++] = {i, -1, 0, 0};
        for (int j = 0; j < 12; ++j) {
            const auto token = static_cast<int32_t>(bench.random() % static_cast<uint64_t>(f.vocab));
            in.updates[in.header->num_updates++] = {i, token, j % 2, 0};
            const size_t at = static_cast<size_t>(i) * static_cast<size_t>(f.vocab) + static_cast<size_t>(token);
            if (j % 2 != 0)
                ++f.counts[at];
            else
                f.seen[at] = 1;
        }
        for (int j = 0; j < 3; ++j)
            in.biases[in.header->num_biases++] = {static_cast<int32_t>(bench.random() % static_cast<uint64_t>(f.vocab)),
                                                  5.0f};
    }
    step.upload();
}

struct Outcome {
    int wrong = 0;
    double worst = 0;
};

Outcome compare(const Fixture& f, const StepView& in, bool greedy, int poisoned, const SampleResult* r,
                const std::vector<int32_t>& slot_tokens, const std::vector<uint16_t>& after) {
    Outcome o;
    for (int i = 0; i < f.samples; ++i) {
        if (i == poisoned) {
            o.wrong += r[i].flags == kSampleNonFinite ? 0 : 1;
            continue;
        }
        const int32_t expected = reference_token(f, in, i);
        if (r[i].token != expected || slot_tokens[static_cast<size_t>(i)] != expected || r[i].flags != 0) {
            ++o.wrong;
            std::printf("sample %d of %d, vocabulary %d: %d instead of %d\n", i, f.samples, f.vocab, r[i].token, expected);
        }
        if (!greedy && in.samples[i].num_logprobs >= 0)
            o.worst = std::max(o.worst, check_logprobs(f, in.samples[i], i, r[i]));
        if (!greedy && in.samples[i].uses_counts != 0) {
            const size_t at = static_cast<size_t>(i) * static_cast<size_t>(f.vocab) + static_cast<size_t>(expected);
            o.wrong += after[at] == f.counts[at] + 1 ? 0 : 1;
        }
    }
    return o;
}

void run_case(Bench& bench, int samples, int vocab, bool greedy, float sigma) {
    KvLayout layout{DType::bf16, 1, 1, 64, 16, 0};
    StepBuilder step(layout, std::vector<SegmentShape>(static_cast<size_t>(samples), SegmentShape{0, 1}), 1, 0, false,
                     bench.context->num_sms(), bench.random);
    const int stride_of_rows = vocab % 2 == 0 ? (vocab + 127) / 64 * 64 : vocab;   // odd: rows that no vector load may read
    Fixture f{samples, vocab, stride_of_rows, {}, {}, {}};
    f.logits = random_values<float>(bench.random, static_cast<size_t>(samples * f.stride), sigma);
    for (float& v : f.logits) v = std::round(v * 64) / 64;   // ties happen
    const int poisoned = samples > 2 ? 2 : -1;
    if (poisoned >= 0) f.logits[static_cast<size_t>(poisoned * f.stride + vocab / 2)] = vocab % 2 == 0 ? NAN : -INFINITY;
    const size_t cells = static_cast<size_t>(samples) * static_cast<size_t>(vocab);
    f.counts.assign(cells, 7);   // cleared by the updates below
    f.seen.assign(cells, 1);
    DeviceArray<uint16_t> counts(f.counts);
    DeviceArray<uint8_t> seen(f.seen);
    f.counts.assign(cells, 0);
    f.seen.assign(cells, 0);
    fill_step(bench, f, step, greedy);
    DeviceArray<float> logits(f.logits);
    DeviceArray<int32_t> slots(static_cast<size_t>(samples));
    DeviceArray<uint8_t> workspace(cuda::sample_workspace_bytes(samples, vocab));
    const size_t stride = step_result_bytes(samples);
    uint8_t* results = nullptr;
    require(cudaMallocHost(&results, 2 * stride), "pinned");
    std::fill(results, results + 2 * stride, uint8_t{0xa5});
    SampleParams p;
    p.in = step.device();
    p.samples = samples;
    p.greedy_only = greedy;
    p.logits = logits.data();
    p.vocab_stride = f.stride;
    p.vocab = vocab;
    p.slot_tokens = slots.data();
    p.output_counts = counts.data();
    p.prompt_seen = seen.data();
    p.workspace = workspace.data();
    p.results = results;
    p.result_stride = stride;
    require(cuda::run_sample(bench.stream, p), "sample");
    bench.finish("sample");
    const auto* header = reinterpret_cast<const StepResultHeader*>(results + stride);
    const auto* r = reinterpret_cast<const SampleResult*>(results + stride + sizeof(StepResultHeader));
    Outcome o = compare(f, step.host(), greedy, poisoned, r, slots.get(), counts.get());
    if (header->step != 4711) ++o.wrong;
    require(cudaFreeHost(results), "pinned");
    const std::string name = std::string(greedy ? "greedy" : "full") + " samples " + std::to_string(samples) +
                             " vocabulary " + std::to_string(vocab) + " sigma " + std::to_string(sigma);
    bench.report->add("sample " + name + " wrong tokens", o.wrong, 0);
    if (!greedy) bench.report->add("sample " + name + " log-probabilities", o.worst, 1e-4);
}

}   // namespace

void check_sample(Bench& bench) {
    for (const int vocab : {100, 1023, 1026, 49152, 50257, 151936}) {
        for (const float sigma : {1.0f, 5.0f}) {
            run_case(bench, 1, vocab, true, sigma);
            run_case(bench, 9, vocab, true, sigma);
            run_case(bench, 60, vocab, true, sigma);
            run_case(bench, 1, vocab, false, sigma);
            run_case(bench, 60, vocab, false, sigma);
        }
    }
}

}   // namespace takt::check
