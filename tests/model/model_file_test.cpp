// From GGUF keys and tensors to a network's shape and weights: a small model is bound, and each key or tensor that is missing,
// wrong or not of the architecture is refused with its name, what was found and what was expected.
#include "catch.h"

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "gguf_writer.h"
#include "model/model_file.h"
#include "temporary_folder.h"

using namespace takt;

namespace {

using Bytes = GgufWriter::Bytes;

constexpr uint64_t kHidden = 64, kFfn = 96, kVocab = 12;
constexpr uint32_t kF32 = 0, kQ8_0 = 8;

struct TensorPlan {
    std::string name;
    std::vector<uint64_t> shape;
    uint32_t type;
};

/// Two layers, four heads over two key-value heads of 16.
struct ModelPlan {
    std::string architecture = "llama";
    std::vector<std::pair<std::string, uint32_t>> keys = {{"block_count", 2},        {"embedding_length", 64},
                                                          {"feed_forward_length", 96}, {"attention.head_count", 4},
                                                          {"attention.head_count_kv", 2}, {"context_length", 256}};
    std::vector<TensorPlan> tensors;

    ModelPlan() {
        tensors = {{"token_embd.weight", {kHidden, kVocab}, kQ8_0}, {"output_norm.weight", {kHidden}, kF32}};
        for (const std::string p : {"blk.0.", "blk.1."}) {
            tensors.push_back({p + "attn_norm.weight", {kHidden}, kF32});
            tensors.push_back({p + "attn_q.weight", {kHidden, 64}, kQ8_0});
            tensors.push_back({p + "attn_k.weight", {kHidden, 32}, kQ8_0});
            tensors.push_back({p + "attn_v.weight", {kHidden, 32}, kQ8_0});
            tensors.push_back({p + "attn_output.weight", {64, kHidden}, kQ8_0});
            tensors.push_back({p + "ffn_norm.weight", {kHidden}, kF32});
            tensors.push_back({p + "ffn_gate.weight", {kHidden, kFfn}, kQ8_0});
            tensors.push_back({p + "ffn_up.weight", {kHidden, kFfn}, kQ8_0});
            tensors.push_back({p + "ffn_down.weight", {kFfn, kHidden}, kQ8_0});
        }
    }
    uint32_t& key(const std::string& name) {
        for (auto& [key, value] : keys) {
            if (key == name) return value;
        }
        return keys.emplace_back(name, 0).second;
    }
    TensorPlan& tensor(const std::string& name) {
        for (TensorPlan& t : tensors) {
            if (t.name == name) return t;
        }
        return tensors.emplace_back(TensorPlan{name, {}, kF32});
    }
    template <class List>
    static void drop(List& list, const std::string& name, const std::function<std::string(const typename List::value_type&)>& of) {
        std::erase_if(list, [&](const auto& item) { return of(item) == name; });
    }
    void drop_tensor(const std::string& name) {
        drop(tensors, name, [](const TensorPlan& t) { return t.name; });
    }
    void drop_key(const std::string& name) {
        drop(keys, name, [](const std::pair<std::string, uint32_t>& k) { return k.first; });
    }
    [[nodiscard]] GgufWriter writer() const {
        GgufWriter out;
        out.add("general.architecture", architecture);
        for (const auto& [key, value] : keys) out.add(architecture + "." + key, value);
        for (const TensorPlan& t : tensors) {
            uint64_t elements = 1;
            for (const uint64_t size : t.shape) elements *= size;
            const uint64_t bytes = t.type == kQ8_0 ? elements / 32 * 34 : elements * 4;
            out.add_tensor(t.name, t.shape, t.type, Bytes(bytes, 1));
        }
        return out;
    }
};

/// The message with which the model is refused, or "bound".
std::string refusal(const GgufWriter& writer) {
    const Bytes bytes = writer.bytes();
    const auto file = GgufFile::parse(bytes, "m.gguf");
    if (!file) return file.error();
    const auto config = read_model_config(file.value());
    if (!config) return config.error();
    const auto tensors = bind_tensors(file.value(), config.value());
    return tensors ? "bound" : tensors.error();
}

void check_refused(const std::function<void(ModelPlan&)>& change, const std::vector<std::string>& parts) {
    ModelPlan plan;
    change(plan);
    const std::string message = refusal(plan.writer());
    INFO(message);
    CHECK(message.rfind("m.gguf: ", 0) == 0);
    for (const std::string& part : parts) {
        INFO(part);
        CHECK(message.find(part) != std::string::npos);
    }
}

}  // namespace

TEST_CASE("a small model is bound as its file says") {
    const GgufWriter writer = ModelPlan().writer();
    const Bytes bytes = writer.bytes();
    const auto file = GgufFile::parse(bytes, "m.gguf");
    REQUIRE(file);
    const auto config = read_model_config(file.value());
    REQUIRE(config);
    const ModelConfig& c = config.value();
    CHECK(c.num_layers == 2);
    CHECK(c.hidden == 64);
    CHECK(c.head_dim == 16);
    CHECK(c.num_kv_heads == 2);
    CHECK(c.vocab == 12);
    CHECK(c.has_tied_head);
    CHECK(c.rope_base == 10000.0);
    const auto tensors = bind_tensors(file.value(), c);
    REQUIRE(tensors);
    CHECK(tensors.value().layers.size() == 2);
    CHECK(tensors.value().head.data == tensors.value().embedding.data);
    CHECK(tensors.value().layers[1].k.rows == 32);
    CHECK(tensors.value().layers[1].q_norm.data == nullptr);
}

TEST_CASE("an own head, biases and head norms where the architecture has them") {
    ModelPlan plan;
    plan.tensor("output.weight") = {"output.weight", {kHidden, kVocab}, kQ8_0};
    CHECK(refusal(plan.writer()) == "bound");
    ModelPlan qwen2;
    qwen2.architecture = "qwen2";
    CHECK(refusal(qwen2.writer()).find("\"blk.0.attn_q.bias\" is missing") != std::string::npos);
    for (const std::string p : {"blk.0.", "blk.1."}) {
        qwen2.tensor(p + "attn_q.bias") = {p + "attn_q.bias", {64}, kF32};
        qwen2.tensor(p + "attn_k.bias") = {p + "attn_k.bias", {32}, kF32};
        qwen2.tensor(p + "attn_v.bias") = {p + "attn_v.bias", {32}, kF32};
    }
    CHECK(refusal(qwen2.writer()) == "bound");
    qwen2.architecture = "llama";
    CHECK(refusal(qwen2.writer()).find("bias\" is not of this architecture") != std::string::npos);
}

TEST_CASE("missing and wrong keys are named") {
    check_refused([](ModelPlan& p) { p.architecture = "mamba"; }, {"\"mamba\" is not available", "llama"});
    check_refused([](ModelPlan& p) { p.drop_key("block_count"); }, {"\"llama.block_count\" is missing"});
    check_refused([](ModelPlan& p) { p.drop_key("context_length"); }, {"\"llama.context_length\" is missing"});
    check_refused([](ModelPlan& p) { p.key("block_count") = 0; }, {"llama.block_count", "0 found", "1 to 1024 expected"});
    check_refused([](ModelPlan& p) { p.key("block_count") = 4'000'000'000; }, {"4000000000 found"});
    check_refused([](ModelPlan& p) { p.key("attention.head_count_kv") = 3; }, {"head_count is no multiple of head_count_kv"});
    check_refused([](ModelPlan& p) { p.key("rope.dimension_count") = 8; }, {"rope.dimension_count"});
    ModelPlan scaled;
    GgufWriter writer = scaled.writer();
    writer.add("llama.rope.scaling.type", "yarn");
    CHECK(refusal(writer).find("\"yarn\" is not available") != std::string::npos);
    GgufWriter negative = scaled.writer();
    negative.add("llama.rope.freq_base", -1.0f);
    CHECK(refusal(negative).find("rope.freq_base") != std::string::npos);
}

TEST_CASE("missing, misshapen, mistyped and foreign tensors are named with both shapes") {
    check_refused([](ModelPlan& p) { p.drop_tensor("token_embd.weight"); }, {"\"token_embd.weight\" is missing"});
    check_refused([](ModelPlan& p) { p.drop_tensor("blk.1.ffn_up.weight"); }, {"\"blk.1.ffn_up.weight\" is missing"});
    check_refused([](ModelPlan& p) { p.tensor("blk.0.attn_k.weight").shape = {64, 64}; },
                  {"\"blk.0.attn_k.weight\"", "64 x 64 found", "64 x 32 expected"});
    check_refused([](ModelPlan& p) { p.tensor("output_norm.weight") = {"output_norm.weight", {kHidden}, kQ8_0}; },
                  {"\"output_norm.weight\"", "q8_0 found", "f32, f16 or bf16 expected"});
    check_refused([](ModelPlan& p) { p.tensor("blk.0.extra.weight").shape = {8}; },
                  {"\"blk.0.extra.weight\" is not of this architecture"});
    check_refused([](ModelPlan& p) { p.tensor("rope_freqs.weight").shape = {9}; }, {"\"rope_freqs.weight\""});
    check_refused([](ModelPlan& p) { p.key("block_count") = 3; }, {"\"blk.2.attn_norm.weight\" is missing"});
}

TEST_CASE("a model file is opened from the disk; what is no file is named") {
    const test::TemporaryFolder folder;
    GgufWriter writer = ModelPlan().writer();
    writer.add("tokenizer.chat_template", "{{ messages }}");
    writer.add("tokenizer.ggml.model", "llama");
    writer.add("tokenizer.ggml.tokens", std::vector<std::string>(kVocab + 1, "x"));
    const Bytes bytes = writer.bytes();
    const std::string path = folder.write("model.gguf", bytes);
    const auto opened = ModelFile::open(path);
    REQUIRE(opened);
    CHECK(opened.value()->chat_template() == "{{ messages }}");
    CHECK(opened.value()->tensor_bytes() > 0);
    const auto spec = opened.value()->tokenizer_spec();   // one token more than the embedding has rows
    REQUIRE_FALSE(spec);
    CHECK(spec.error().find("13 tokens, but the embedding has 12 rows") != std::string::npos);
    std::filesystem::remove(path);
    const auto gone = ModelFile::open(path);
    REQUIRE_FALSE(gone);
    CHECK(gone.error().find(path) != std::string::npos);
    CHECK_FALSE(ModelFile::open(folder.path()));
}
