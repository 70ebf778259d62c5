// Sampling on the CPU device against its definition written out plainly: contract order, ties, penalties over prompt and output,
// nucleus and min_p, the generator's point on the distribution, raw log-probabilities, edits of the counts, and broken logits.
#include "catch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/device_factory.h"
#include "kernels/ops.h"
#include "kernels/philox.h"

using namespace takt;

namespace {

constexpr int32_t kVocab = 61, kStride = 64, kSlots = 4, kSamples = 4;

/// One launch of the operation over host-made inputs.
struct Sampler {
    std::unique_ptr<Device> device = make_cpu_device({.num_threads = 2}, {[](void*) { return uint64_t{1}; }, nullptr}).value();
    std::unique_ptr<Stream> stream = device->stream(0).value();
    StepInputLayout layout{StepCapacity{8, 8, kSamples, 1, 8, 32, 256}};
    size_t stride = step_result_bytes(kSamples);
    Buffer input = device->alloc(layout.bytes(), MemoryKind::device).value();
    Buffer logits_buffer = device->alloc(sizeof(float) * kSamples * kStride, MemoryKind::device).value();
    Buffer tokens = device->alloc(sizeof(int32_t) * kSlots, MemoryKind::device).value();
    Buffer counts = device->alloc(sizeof(uint16_t) * kSlots * kVocab, MemoryKind::device).value();
    Buffer seen = device->alloc(kSlots * kVocab, MemoryKind::device).value();
    Buffer results = device->alloc(2 * stride, MemoryKind::pinned).value();

    Sampler() {
        std::memset(input.data(), 0, input.bytes());
        std::memset(counts.data(), 0xEE, counts.bytes());   // a slot's counts are whatever was there before it clears them
        std::memset(seen.data(), 0xEE, seen.bytes());
        std::memset(results.data(), 0, results.bytes());
        for (int32_t i = 0; i < kSamples * kStride; ++i) logits_buffer.as<float>()[i] = 1e9f;   // padding ids are never drawn
    }
    StepView view() { return layout.view(input.data()); }
    float* logits(int32_t sample) { return logits_buffer.as<float>() + sample * kStride; }
    SampleInput& add(const std::vector<float>& values) {
        const int32_t index = view().header->num_samples++;
        std::copy(values.begin(), values.end(), logits(index));
        SampleInput& s = view().samples[index];
        s = SampleInput{};
        s.row = index;
        s.slot = index;
        return s;
    }
    void update(int32_t slot, int32_t token, int32_t is_output) {
        view().updates[view().header->num_updates++] = CountUpdate{slot, token, is_output, 0};
    }
    const SampleResult* run(bool greedy_only = false) {
        SampleParams p;
        p.in = view();
        p.samples = kSamples;
        p.greedy_only = greedy_only;
        p.logits = logits_buffer.as<float>();
        p.vocab_stride = kStride;
        p.vocab = kVocab;
        p.slot_tokens = tokens.as<int32_t>();
        p.output_counts = counts.as<uint16_t>();
        p.prompt_seen = seen.as<uint8_t>();
        p.results = results.data();
        p.result_stride = stride;
        REQUIRE(device->ops().sample(*stream, p));
        REQUIRE(stream->synchronize());
        const size_t block = static_cast<size_t>(view().header->result_index) * stride;
        return reinterpret_cast<const SampleResult*>(results.as<uint8_t>() + block + sizeof(StepResultHeader));
    }
};

std::vector<float> random_logits(std::mt19937& random, float spread = 3.0f) {
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<float> out(kVocab);
    for (float& v : out) v = normal(random);
    return out;
}

/// The distribution of contract section 4, token by token, from logits that bias and penalties have already changed.
int32_t draw_by_definition(const std::vector<float>& values, const SampleInput& s) {
    std::vector<std::pair<float, int32_t>> kept;
    for (int32_t t = 0; t < kVocab; ++t) kept.emplace_back(values[static_cast<size_t>(t)] / s.temperature, t);
    std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    });
    if (s.top_k > 0) kept.resize(static_cast<size_t>(std::min(s.top_k, kVocab)));
    const float largest = kept[0].first;
    const auto weight = [&](const auto& c) { return std::exp(static_cast<double>(c.first - largest)); };
    double total = 0;
    for (const auto& c : kept) total += weight(c);
    double sum = 0;
    for (size_t i = 0; i < kept.size() && s.top_p < 1.0f; ++i) {
        sum += weight(kept[i]);
        if (sum >= static_cast<double>(s.top_p) * total) kept.resize(i + 1);
    }
    kept.erase(std::remove_if(kept.begin(), kept.end(), [&](const auto& c) { return weight(c) < static_cast<double>(s.min_p); }),
               kept.end());
    std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    total = sum = 0;
    for (const auto& c : kept) total += weight(c);
    const double point = sampling_uniform(s.seed, s.position) * total;
    for (const auto& c : kept) {
        sum += weight(c);
        if (point < sum) return c.second;
    }
    return kept.back().second;
}

}  // namespace

TEST_CASE("temperature 0 is the argmax, ties to the lowest id, padding ids never") {
    Sampler sampler;
    std::vector<float> values(kVocab, 1.0f);
    values[7] = values[31] = 2.0f;
    sampler.add(values);
    sampler.add(std::vector<float>(kVocab, -5.0f)).slot = 3;
    CHECK(sampler.run(true)[0].token == 7);
    const SampleResult* full = sampler.run(false);
    CHECK(full[0].token == 7);
    CHECK(full[1].token == 0);
    CHECK(sampler.tokens.as<int32_t>()[0] == 7);
    CHECK(sampler.tokens.as<int32_t>()[3] == 0);
}

TEST_CASE("drawn tokens are those of the definition") {
    std::mt19937 random(5);
    int num_distinct = 0;
    int32_t last = -1;
    for (int round = 0; round < 3000; ++round) {
        Sampler sampler;
        const std::vector<float> values = random_logits(random);
        SampleInput& s = sampler.add(values);
        s.temperature = 0.2f + static_cast<float>(random() % 100) / 50.0f;
        s.top_k = random() % 3 == 0 ? static_cast<int32_t>(1 + random() % 80) : 0;
        s.top_p = random() % 2 == 0 ? 0.05f + static_cast<float>(random() % 90) / 100.0f : 1.0f;
        s.min_p = random() % 3 == 0 ? static_cast<float>(random() % 100) / 100.0f : 0.0f;
        s.seed = random() * uint64_t{0x100000001};
        s.position = static_cast<int32_t>(random() % 10000);
        const int32_t token = sampler.run()[0].token;
        INFO("T " << s.temperature << " top_k " << s.top_k << " top_p " << s.top_p << " min_p " << s.min_p);
        REQUIRE(token == draw_by_definition(values, s));
        num_distinct += token != last ? 1 : 0;
        last = token;
    }
    CHECK(num_distinct > 2000);
}

TEST_CASE("the frequencies of many positions are the probabilities") {
    Sampler sampler;
    std::vector<float> values(kVocab, -100.0f);
    values[3] = std::log(0.5f);
    values[10] = std::log(0.3f);
    values[60] = std::log(0.2f);
    SampleInput& s = sampler.add(values);
    s.temperature = 1.0f;
    s.seed = 42;
    int found[kVocab] = {};
    for (int32_t position = 0; position < 20000; ++position) {
        s.position = position;
        ++found[sampler.run()[0].token];
    }
    CHECK(found[3] == Approx(10000).margin(250));
    CHECK(found[10] == Approx(6000).margin(250));
    CHECK(found[60] == Approx(4000).margin(250));
}

TEST_CASE("bias comes first and belongs to its own request") {
    Sampler sampler;
    const std::vector<float> flat(kVocab, 0.0f);
    SampleInput& first = sampler.add(flat);
    first.bias_begin = 1;
    first.num_biases = 2;
    sampler.add(flat);
    sampler.view().biases[0] = {5, 50.0f};
    sampler.view().biases[1] = {9, 3.0f};
    sampler.view().biases[2] = {0, -100.0f};
    sampler.view().header->num_biases = 3;
    const SampleResult* out = sampler.run();
    CHECK(out[0].token == 9);
    CHECK(out[1].token == 0);
}

TEST_CASE("penalties: repetition over prompt and output, presence and frequency over output, counts that edits made") {
    Sampler sampler;
    std::vector<float> values(kVocab, 0.0f);
    values[1] = 4.0f;    // in the prompt: divided
    values[2] = 3.9f;    // an output, twice
    values[3] = 3.0f;    // neither
    values[4] = -1.0f;   // in the prompt: multiplied
    SampleInput& s = sampler.add(values);
    s.slot = 2;
    s.uses_counts = 1;
    s.repetition_penalty = 1.5f;
    sampler.update(2, -1, 0);
    sampler.update(2, 1, 0);
    sampler.update(2, 4, 0);
    sampler.update(2, 2, 1);
    sampler.update(2, 2, 1);
    CHECK(sampler.run()[0].token == 3);   // 4/1.5 and 3.9/1.5 are below 3
    uint16_t* counts = sampler.counts.as<uint16_t>() + 2 * kVocab;
    CHECK(counts[2] == 2);
    CHECK(counts[3] == 1);   // the drawn token is counted for the next step
    CHECK(counts[1] == 0);
    CHECK(sampler.seen.as<uint8_t>()[2 * kVocab + 1] == 1);
    CHECK(sampler.counts.as<uint16_t>()[kVocab] == 0xEEEE);   // no other slot was touched

    sampler.view().header->num_updates = 0;
    s.repetition_penalty = 1.0f;
    s.presence_penalty = 1.0f;
    CHECK(sampler.run()[0].token == 1);   // prompt tokens know no presence
    s.presence_penalty = 0.0f;
    s.frequency_penalty = -2.0f;   // 2: 3.9 + 4
    CHECK(sampler.run()[0].token == 2);
    CHECK(counts[2] == 3);
}

TEST_CASE("log-probabilities are those of the raw logits, the top ones in order") {
    Sampler sampler;
    std::mt19937 random(8);
    const std::vector<float> values = random_logits(random);
    SampleInput& s = sampler.add(values);
    s.temperature = 0.3f;
    s.top_k = 2;
    s.num_logprobs = 5;
    s.bias_begin = 0;
    s.num_biases = 1;
    sampler.view().biases[0] = {17, 60.0f};
    sampler.view().header->num_biases = 1;
    const SampleResult* out = sampler.run();
    double total = 0;
    for (const float v : values) total += std::exp(static_cast<double>(v));
    const auto logprob = [&](int32_t t) { return static_cast<double>(values[static_cast<size_t>(t)]) - std::log(total); };
    CHECK(out->token == 17);
    CHECK(static_cast<double>(out->logprob) == Approx(logprob(17)).margin(1e-5));
    REQUIRE(out->num_top == 5);
    for (int i = 0; i < 5; ++i) {
        CHECK(static_cast<double>(out->top_logprobs[i]) == Approx(logprob(out->top_tokens[i])).margin(1e-5));
        if (i > 0) CHECK(out->top_logprobs[i] <= out->top_logprobs[i - 1]);
    }
    CHECK(out->top_tokens[0] == std::max_element(values.begin(), values.end()) - values.begin());
}

TEST_CASE("a logit that is not finite fails its own row only") {
    for (const float broken : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        for (const bool greedy : {true, false}) {
            Sampler sampler;
            std::vector<float> values(kVocab, 0.0f);
            values[12] = broken;
            sampler.add(values);
            std::vector<float> good(kVocab, 0.0f);
            good[5] = 1.0f;
            sampler.add(good);
            const SampleResult* out = sampler.run(greedy);
            CHECK((out[0].flags & kSampleNonFinite) != 0);
            CHECK(out[0].token == 0);
            CHECK(out[1].flags == 0);
            CHECK(out[1].token == 5);
        }
    }
}

TEST_CASE("a temperature too small for a float's range is the argmax") {
    Sampler sampler;
    std::vector<float> values(kVocab, 1.0f);
    values[33] = 20.0f;
    sampler.add(values).temperature = 1e-42f;
    std::vector<float> negative(kVocab, -20.0f);
    negative[8] = -1.0f;
    sampler.add(negative).temperature = 1e-42f;
    const SampleResult* out = sampler.run();
    CHECK(out[0].token == 33);
    CHECK(out[1].token == 8);
}

TEST_CASE("the results go to the block that the header names, with its step") {
    Sampler sampler;
    sampler.add(std::vector<float>(kVocab, 0.0f));
    sampler.view().header->result_index = 1;
    sampler.view().header->step = 77;
    (void)sampler.run();
    const auto* second = reinterpret_cast<const StepResultHeader*>(sampler.results.as<uint8_t>() + sampler.stride);
    CHECK(second->step == 77);
    CHECK(reinterpret_cast<const StepResultHeader*>(sampler.results.data())->step == 0);
}
