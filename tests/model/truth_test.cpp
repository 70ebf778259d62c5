// Real models against greedy continuations of a float32 reference: by the rules of each arithmetic (teacher-forced) and the float32
// rule (free-running). Says so and passes where a model or its reference is absent. [.long] runs all prompts; Gemma's weights are
// fetched only by scripts/fetch_gemma3.
#include "catch.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "model_driver.h"

using namespace takt;

namespace {

struct Subject {
    std::string model, truth;
};

const Subject kSmolLm2{TAKT_SOURCE_ROOT "/models/SmolLM2-135M-Instruct.Q4_1.gguf", TAKT_SOURCE_ROOT "/../shared/truth/smollm2.jsonl"};
const Subject kGemma3{TAKT_SOURCE_ROOT "/models/gemma-3-270m.Q4_K_M.gguf", TAKT_SOURCE_ROOT "/../shared/truth/gemma3.jsonl"};

/// What an arithmetic may differ by from float32, the reference's tokens fed: by rules of the reference.
struct Rule {
    CpuArithmetic arithmetic;
    const char* name;
    double least_margin;    ///< at this margin and above no step may differ
    double flips;           ///< share of steps that may differ, over all prompts
    double logprob_median, logprob_p99, logprob_max;   ///< differences of log-probabilities
    DType kv_type = DType::f16;
};

constexpr double kAny = 1e9;
constexpr Rule kInt16{CpuArithmetic::int16, "int16", 0.01, 3.0 / 1920, 0.02, 0.02, 0.02};
constexpr Rule kBf16{CpuArithmetic::bf16, "bf16", 0.1, 0.01, kAny, kAny, kAny};
constexpr Rule kInt8Kv{CpuArithmetic::int16, "int16 with int8 KV", 0.3, 0.015, 0.01, 0.15, 0.5, DType::i8};
constexpr Rule kInt8{CpuArithmetic::int8, "int8", 0.5, 0.04, 0.03, 0.3, kAny};
constexpr Rule kGemmaInt8{CpuArithmetic::int8, "int8", 1.5, 0.04, 0.03, 0.3, kAny};

struct TruthRow {
    std::string id, text;
    std::vector<int32_t> prompt, ids, rival_ids;   // rival: llama.cpp's own text, activations in int8
    std::vector<double> margins, logprobs;
    std::vector<std::pair<int32_t, double>> top;   // at the last prompt position
};

template <class T>
std::vector<T> numbers(const boost::json::value& array) {
    std::vector<T> out;
    for (const auto& item : array.as_array()) out.push_back(item.to_number<T>());
    return out;
}

/// Every `stride`-th row of at most `max_prompt` tokens; empty (with a warning) where something is absent.
std::vector<TruthRow> truth_rows(const Subject& subject, size_t stride, size_t max_prompt = SIZE_MAX) {
    std::vector<TruthRow> rows;
    std::ifstream in(subject.truth);
    if (!in || !std::filesystem::exists(subject.model)) {
        WARN("skipped: " << subject.model << " or its reference is absent");
        return rows;
    }
    std::string line;
    for (size_t i = 0; std::getline(in, line); ++i) {
        if (i % stride != 0) continue;
        const boost::json::value v = boost::json::parse(line);
        TruthRow row;
        row.id = v.at("id").as_string().c_str();
        const char* text = v.as_object().contains("prompt") ? "prompt" : "rendered";
        row.text = std::string(v.at(text).as_string());
        row.prompt = numbers<int32_t>(v.at("prompt_ids"));
        if (row.prompt.size() > max_prompt) continue;
        row.ids = numbers<int32_t>(v.at("f32_ids"));
        row.rival_ids = numbers<int32_t>(v.at("llamacpp_ids"));
        row.margins = numbers<double>(v.at("f32_margins"));
        row.logprobs = numbers<double>(v.at("f32_logprobs"));
        for (const auto& pair : v.at("f32_top20").as_array()) {
            row.top.emplace_back(pair.at(0).to_number<int32_t>(), pair.at(1).to_number<double>());
        }
        rows.push_back(std::move(row));
    }
    return rows;
}

TimeSource no_clock() {
    return {[](void*) -> uint64_t { return 0; }, nullptr};
}

/// Log-probability that the result gives `token`, or NaN where it is not among the listed ones.
double logprob_of(const SampleResult& result, int32_t token) {
    if (result.token == token) return static_cast<double>(result.logprob);
    for (int32_t i = 0; i < result.num_top; ++i) {
        if (result.top_tokens[i] == token) return static_cast<double>(result.top_logprobs[i]);
    }
    return std::nan("");
}

void compare_teacher_forced(const Subject& subject, const Rule& rule, const std::vector<TruthRow>& rows) {
    CpuDeviceOptions options;
    options.arithmetic = rule.arithmetic;
    ModelDriver driver(subject.model, options, no_clock(), rule.kv_type, 2048);
    INFO(driver.error);
    REQUIRE(driver.error.empty());
    size_t num_steps = 0, num_flips = 0;
    double widest = 0;   // margin of a step that differs
    std::vector<double> differences;
    for (const TruthRow& row : rows) {
        INFO(row.id);
        std::vector<int32_t> tokens = row.prompt;
        tokens.insert(tokens.end(), row.ids.begin(), row.ids.end() - 1);
        driver.restart();
        const auto num_samples = static_cast<int32_t>(row.ids.size());
        const std::vector<SampleResult> results = driver.feed(tokens, num_samples, 512, kMaxTopLogprobs);
        INFO(driver.error);
        REQUIRE(results.size() == row.ids.size());
        for (size_t i = 0; i < results.size(); ++i, ++num_steps) {
            INFO("step " << i << ", margin " << row.margins[i]);
            if (results[i].token != row.ids[i]) {
                ++num_flips;
                widest = std::max(widest, row.margins[i]);
                CHECK(row.margins[i] < rule.least_margin);
            }
            const double found = logprob_of(results[i], row.ids[i]);
            CHECK(!std::isnan(found));   // among the twenty likeliest at least
            differences.push_back(std::isnan(found) ? kAny : std::abs(found - row.logprobs[i]));
        }
        for (const auto& [token, logprob] : row.top) {
            const double found = logprob_of(results[0], token);
            if (!std::isnan(found)) CHECK(std::abs(found - logprob) <= rule.logprob_max);
        }
    }
    std::sort(differences.begin(), differences.end());
    const double median = differences[differences.size() / 2], p99 = differences[differences.size() * 99 / 100];
    WARN(rule.name << ", teacher-forced: " << num_flips << " of " << num_steps << " steps differ (margins up to " << widest
                   << "); log-probabilities off by " << median << " (median), " << p99
                   << " (p99), " << differences.back() << " (largest)");
    // A few prompts may have more than their share, by twice what a count of so few scatters.
    const double share = rule.flips * static_cast<double>(num_steps);
    const double scatter = num_steps < 1000 ? 2 * std::sqrt(share) : 0;
    CHECK(static_cast<double>(num_flips) <= std::max(share + scatter, 1.0));
    CHECK(median <= rule.logprob_median);
    CHECK(p99 <= rule.logprob_p99);
    CHECK(differences.back() <= rule.logprob_max);
}

void compare_free_running(const Subject& subject, const std::vector<TruthRow>& rows) {
    CpuDeviceOptions options;
    options.arithmetic = CpuArithmetic::float32;
    ModelDriver driver(subject.model, options, no_clock(), DType::f32, 2048);
    INFO(driver.error);
    REQUIRE(driver.error.empty());
    size_t num_steps = 0;
    double worst = 0;
    for (const TruthRow& row : rows) {
        INFO(row.id);
        driver.restart();
        std::vector<SampleResult> results = driver.feed(row.prompt, 1, 512, kMaxTopLogprobs);
        for (size_t i = 0; i < row.ids.size(); ++i, ++num_steps) {
            INFO("step " << i << ", margin " << row.margins[i] << ' ' << driver.error);
            REQUIRE(results.size() == 1);
            if (results[0].token != row.ids[i]) {
                CHECK(row.margins[i] < 0.001);
                break;
            }
            const double difference = std::abs(logprob_of(results[0], row.ids[i]) - row.logprobs[i]);
            CHECK(difference <= 0.001);
            worst = std::max(worst, difference);
            for (size_t k = 0; i == 0 && k < row.top.size(); ++k) {
                const double found = logprob_of(results[0], row.top[k].first);
                if (!std::isnan(found)) CHECK(std::abs(found - row.top[k].second) <= 0.001);
            }
            if (i + 1 < row.ids.size()) results = driver.feed(std::span(&row.ids[i], 1), 1, 1, 0);
        }
    }
    WARN("float32, free-running: " << num_steps << " steps, log-probability off by at most " << worst);
}

/// Texts that leave the float32 text, and tokens that are others at their place.
struct Changes {
    size_t texts = 0, tokens = 0;
    void count(const std::vector<int32_t>& found, const std::vector<int32_t>& expected) {
        size_t changed = 0;
        for (size_t i = 0; i < expected.size(); ++i) changed += i >= found.size() || found[i] != expected[i] ? 1 : 0;
        tokens += changed;
        texts += changed > 0 ? 1 : 0;
    }
};

/// The default arithmetic left to itself, beside what llama.cpp made of the same prompts.
void compare_changes(const Subject& subject, const std::vector<TruthRow>& rows) {
    CpuDeviceOptions options;
    options.arithmetic = CpuArithmetic::int16;
    ModelDriver driver(subject.model, options, no_clock(), DType::f16, 2048);
    INFO(driver.error);
    REQUIRE(driver.error.empty());
    Changes ours, rival;
    for (const TruthRow& row : rows) {
        driver.restart();
        std::vector<int32_t> ids;
        std::vector<SampleResult> results = driver.feed(row.prompt, 1, 512, 0);
        while (results.size() == 1) {
            ids.push_back(results[0].token);
            if (ids.size() == row.ids.size()) break;
            results = driver.feed(std::span(&ids.back(), 1), 1, 1, 0);
        }
        ours.count(ids, row.ids);
        rival.count(row.rival_ids, row.ids);
    }
    WARN("left to itself, of " << rows.size() << " texts and " << rows.size() * rows[0].ids.size() << " tokens: int16 changes "
                               << ours.texts << " and " << ours.tokens << ", llama.cpp " << rival.texts << " and " << rival.tokens);
    CHECK(ours.tokens * 10 <= rival.tokens);
}

}  // namespace

TEST_CASE("the files' own tokenizers give the reference's ids for every prompt") {
    for (const Subject* subject : {&kSmolLm2, &kGemma3}) {
        const std::vector<TruthRow> rows = truth_rows(*subject, 1);
        if (rows.empty()) continue;
        const auto file = ModelFile::open(subject->model);
        REQUIRE(file.ok());
        const auto tokenizer = make_tokenizer(file.value()->tokenizer_spec().value());
        REQUIRE(tokenizer.ok());
        for (const TruthRow& row : rows) {
            INFO(row.id);
            EncodeOptions options;
            options.parse_special = true;
            CHECK(tokenizer.value().encode(row.text, options) == row.prompt);
        }
    }
}

TEST_CASE("SmolLM2, some prompts: int16 arithmetic keeps to the float32 text") {
    const std::vector<TruthRow> rows = truth_rows(kSmolLm2, 6, 100);
    if (!rows.empty()) compare_teacher_forced(kSmolLm2, kInt16, rows);
}

TEST_CASE("SmolLM2, some prompts: int8 KV within its bounds") {
    const std::vector<TruthRow> rows = truth_rows(kSmolLm2, 6, 100);
    if (!rows.empty()) compare_teacher_forced(kSmolLm2, kInt8Kv, rows);
}

TEST_CASE("SmolLM2, a prompt: float32 arithmetic gives the float32 text") {
    const std::vector<TruthRow> rows = truth_rows(kSmolLm2, 39, 100);
    if (!rows.empty()) compare_free_running(kSmolLm2, {rows.front()});
}

TEST_CASE("SmolLM2, all prompts: int16 arithmetic keeps to the float32 text", "[.long]") {
    const std::vector<TruthRow> rows = truth_rows(kSmolLm2, 1);
    if (!rows.empty()) compare_teacher_forced(kSmolLm2, kInt16, rows);
}

TEST_CASE("SmolLM2, all prompts: int8 KV within its bounds", "[.long]") {
    const std::vector<TruthRow> rows = truth_rows(kSmolLm2, 1);
    if (!rows.empty()) compare_teacher_forced(kSmolLm2, kInt8Kv, rows);
}

TEST_CASE("SmolLM2, all prompts: float32 arithmetic gives the float32 text", "[.long]") {
    const std::vector<TruthRow> rows = truth_rows(kSmolLm2, 1);
    if (!rows.empty()) compare_free_running(kSmolLm2, rows);
}

TEST_CASE("SmolLM2, all prompts: a tenth of the tokens that llama.cpp changes, at most", "[.long]") {
    const std::vector<TruthRow> rows = truth_rows(kSmolLm2, 1);
    if (!rows.empty()) compare_changes(kSmolLm2, rows);
}

TEST_CASE("SmolLM2, all prompts: int8 and bf16 arithmetic within their bounds", "[.long]") {
    const std::vector<TruthRow> rows = truth_rows(kSmolLm2, 1);
    if (rows.empty()) return;
    compare_teacher_forced(kSmolLm2, kInt8, rows);
    compare_teacher_forced(kSmolLm2, kBf16, rows);
}

TEST_CASE("Gemma 3, some prompts: int16 arithmetic keeps to the float32 text") {
    const std::vector<TruthRow> rows = truth_rows(kGemma3, 7, 100);
    if (!rows.empty()) compare_teacher_forced(kGemma3, kInt16, rows);
}

TEST_CASE("Gemma 3, all prompts: int16, int8 and bf16 arithmetic within their bounds", "[.long]") {
    const std::vector<TruthRow> rows = truth_rows(kGemma3, 1);
    if (rows.empty()) return;
    compare_teacher_forced(kGemma3, kInt16, rows);
    compare_teacher_forced(kGemma3, kGemmaInt8, rows);
    compare_teacher_forced(kGemma3, kBf16, rows);
}

TEST_CASE("Gemma 3, all prompts: a tenth of the tokens that llama.cpp changes, at most", "[.long]") {
    const std::vector<TruthRow> rows = truth_rows(kGemma3, 1);
    if (!rows.empty()) compare_changes(kGemma3, rows);
}

TEST_CASE("Gemma 3, all prompts: float32 arithmetic gives the float32 text", "[.long]") {
    const std::vector<TruthRow> rows = truth_rows(kGemma3, 1);
    if (!rows.empty()) compare_free_running(kGemma3, rows);
}
