// The safetensors reader and Hugging Face folders: what they take, and that everything wrong is refused with the thing's name.
#include "catch.h"

#include <filesystem>

#include "model/architecture.h"
#include "model/model_file.h"
#include "model/model_folder.h"
#include "model/tokenizer.h"
#include "synthetic_folder.h"

using namespace takt;
using namespace takt::test;

namespace {

std::string parse_error(const std::string& header, size_t data_bytes) {
    const std::vector<uint8_t> bytes = safetensors_bytes(header, std::vector<uint8_t>(data_bytes));
    const Result<SafetensorsFile> file = SafetensorsFile::parse(bytes, "x");
    return file ? "accepted" : file.error();
}

/// The error of a file whose only tensor "a" has these fields.
std::string entry_error(const std::string& fields, size_t data_bytes) {
    const std::string error = parse_error("{\"a\":{" + fields + "}}", data_bytes), prefix = "x: tensor \"a\": ";
    return error.find(prefix) == 0 ? error.substr(prefix.size()) : error;
}

SyntheticShape plain_shape(DType type) {
    SyntheticShape s;
    s.matrices = s.tables = s.vectors = type;
    return s;
}

/// The folder's config with one key changed; the error of opening it.
std::string config_error(const std::string& architecture, const char* key, const json::value& value) {
    SyntheticShape shape = plain_shape(DType::bf16);
    shape.architecture = architecture;
    json::object config = folder_config(shape);
    config[key] = value;
    const Result<ModelConfig> parsed = parse_folder_config(json::serialize(config));
    return parsed ? "accepted" : parsed.error();
}

}  // namespace

TEST_CASE("a safetensors header gives its tensors as views") {
    const std::string header = R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[16,28]},"__metadata__":{"a":"b"},)"
                               R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}  )";
    const std::vector<uint8_t> bytes = safetensors_bytes(header, std::vector<uint8_t>(28));
    const Result<SafetensorsFile> file = SafetensorsFile::parse(bytes, "x");
    REQUIRE(file.ok());
    const auto& tensors = file.value().tensors();
    REQUIRE(tensors.size() == 2);
    CHECK(tensors[0].name == "a");
    CHECK(tensors[0].tensor.rows == 1);
    CHECK(tensors[0].tensor.cols == 4);
    CHECK(tensors[1].tensor.type == DType::bf16);
    CHECK(tensors[1].tensor.rows == 2);
    CHECK(tensors[1].tensor.data == bytes.data() + 8 + header.size() + 16);
}

TEST_CASE("a wrong safetensors header is refused by name") {
    CHECK(parse_error("{", 0).find("x: the header is not valid JSON") == 0);
    CHECK(parse_error("[]", 0) == "x: the header is not a JSON object");
    CHECK(entry_error(R"("shape":[1],"data_offsets":[0,4])", 4) == "no \"dtype\"");
    CHECK(entry_error(R"("dtype":"F32","shape":[1],"data_offsets":[0])", 4) == "no \"data_offsets\" of two numbers");
    CHECK(entry_error(R"("dtype":"F64","shape":[1],"data_offsets":[0,8])", 8).find("type F64 is not available") == 0);
    CHECK(entry_error(R"("dtype":"Z","shape":[1],"data_offsets":[0,8])", 8) == "unknown type \"Z\"");
    CHECK(entry_error(R"("dtype":"F32","shape":[0],"data_offsets":[0,0])", 0) == "dimension 0 of 0 is out of range");
    CHECK(entry_error(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])", 4) == "dimension 0 of -1 is out of range");
    CHECK(entry_error(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])", 4).find("dimension 1 of") == 0);
    CHECK(entry_error(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", 4) == "4 bytes found, 8 expected of its shape");
    CHECK(entry_error(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])", 7) == "data bytes 4 to 8 expected, the file has 7");
    const std::string one = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
    const std::string second = R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})";
    CHECK(parse_error("{\"a\":" + second + "}", 8).find("begins at data byte 4, 0 expected") != std::string::npos);
    CHECK(parse_error("{\"a\":" + one + ",\"b\":" + one + "}", 4).find("begins at data byte 0, 4 expected") != std::string::npos);
    CHECK(parse_error("{\"a\":" + one + "}", 6) == "x: 6 bytes of data found, 4 expected");
    CHECK(SafetensorsFile::parse(std::vector<uint8_t>(7), "x").error() == "x: not a safetensors file: it has 7 bytes");
    CHECK(SafetensorsFile::parse(std::vector<uint8_t>(9, 255), "x").error().find("x: not a safetensors file: a header of") == 0);
}

TEST_CASE("a folder opens from one file and from several, with its tokenizer and template") {
    for (const size_t num_files : {1u, 3u}) {
        const TemporaryFolder folder;
        const SyntheticModel model(plain_shape(DType::bf16));
        write_folder(model, folder, num_files);
        const Result<std::unique_ptr<ModelFile>> file = ModelFile::open(folder.path() + "/");
        INFO((file ? "" : file.error()));
        REQUIRE(file.ok());
        CHECK(file.value()->config().architecture == "llama");
        CHECK(file.value()->config().rope_style == RopeStyle::half);
        CHECK(file.value()->tensors().layers.size() == 2);
        CHECK(file.value()->chat_template() == "from the config");
        const Result<TokenizerSpec> spec = file.value()->tokenizer_spec();
        INFO((spec ? "" : spec.error()));
        REQUIRE(spec.ok());
        const Result<Tokenizer> tokenizer = make_tokenizer(spec.value());
        REQUIRE(tokenizer.ok());
        CHECK(tokenizer.value().vocab_size() == kSyntheticTokens);
        CHECK(tokenizer.value().is_end_of_generation(299));
        CHECK(tokenizer.value().is_end_of_generation(298));
        CHECK(tokenizer.value().encode("the").size() == 1);
        folder.write("chat_template.jinja", std::string("from its own file"));
        CHECK(ModelFile::open(folder.path()).value()->chat_template() == "from its own file");
    }
}

TEST_CASE("tied heads may be saved twice, older folders may carry rotary frequencies, and nothing else may be more or less") {
    SyntheticShape shape = plain_shape(DType::f16);
    shape.tied = true;
    const SyntheticModel model(shape);
    std::vector<SyntheticTensor> tensors = model.tensors();
    const auto open_with = [&](std::vector<SyntheticTensor> changed) {
        const TemporaryFolder folder;
        write_folder(model, folder);
        folder.write("model.safetensors", safetensors_of(changed));
        const auto file = ModelFile::open(folder.path());
        return file ? std::string("opened") : file.error().substr(folder.path().size());
    };
    SyntheticTensor head = model.tensor("model.embed_tokens.weight");
    head.name = "lm_head.weight";
    SyntheticTensor frequencies = model.tensor("model.layers.0.input_layernorm.weight");
    frequencies.name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    CHECK(open_with(tensors) == "opened");
    tensors.push_back(head);
    tensors.push_back(frequencies);
    CHECK(open_with(tensors) == "opened");
    tensors.back().name = "model.layers.2.self_attn.q_proj.weight";
    CHECK(open_with(tensors) == ": tensor \"model.layers.2.self_attn.q_proj.weight\" is not of this architecture");
    tensors = model.tensors();
    tensors[2].rows = 32;
    tensors[2].cols = 128;
    CHECK(open_with(tensors) == ": tensor \"" + tensors[2].name + "\": 128 x 32 found, 64 x 64 expected");
    tensors.erase(tensors.begin() + 2);
    CHECK(open_with(tensors) == ": tensor \"model.layers.0.self_attn.q_proj.weight\" is missing");
}

TEST_CASE("index and files must agree, and names in the index lead nowhere else") {
    const TemporaryFolder folder;
    const SyntheticModel model(plain_shape(DType::f32));
    write_folder(model, folder, 2);
    const auto error = [&](const json::value& map) {
        folder.write("model.safetensors.index.json", json::serialize(json::object{{"weight_map", map}}));
        const auto file = ModelFile::open(folder.path());
        return file ? std::string("opened") : file.error().substr(folder.path().size());
    };
    const auto index_of = [&](const std::string& changed, const char* file) {
        json::object map;
        const size_t count = model.tensors().size();
        for (size_t i = 0; i < count; ++i) map[model.tensors()[i].name] = i < count / 2 ? "model-0.safetensors" : "model-1.safetensors";
        map[changed] = file;
        return map;
    };
    CHECK(error(index_of("model.norm.weight", "model-1.safetensors")) == "opened");
    CHECK(error(index_of("model.norm.weight", "model-0.safetensors")) ==
          "/model-1.safetensors: tensor \"model.norm.weight\" is not where the index has it");
    CHECK(error(index_of("more", "model-0.safetensors")) ==
          "/model.safetensors.index.json: tensor \"more\" is not in \"model-0.safetensors\"");
    CHECK(error(index_of("more", "../secret")).find("a file name expected") != std::string::npos);
    CHECK(error(index_of("more", "gone.safetensors")).find("/gone.safetensors: cannot be opened") == 0);
    CHECK(error(json::object()) == "/model.safetensors.index.json: no \"weight_map\"");
    std::filesystem::remove(folder.file("model.safetensors.index.json"));
    CHECK(ModelFile::open(folder.path()).error().find("neither model.safetensors nor") != std::string::npos);
}

TEST_CASE("config.json: what would change the result is refused by name") {
    CHECK(config_error("llama", "model_type", "gpt9") ==
          "model_type \"gpt9\" is not available in this version (llama, mistral, qwen2, qwen3, gemma2, gemma3_text are)");
    CHECK(config_error("llama", "hidden_act", "gelu") == "key \"hidden_act\": \"gelu\" is not available in this version (silu is)");
    CHECK(config_error("llama", "attention_bias", true) == "key \"attention_bias\": not available in this version");
    CHECK(config_error("qwen2", "attention_bias", true) == "accepted");
    CHECK(config_error("llama", "mlp_bias", true) == "key \"mlp_bias\": not available in this version");
    CHECK(config_error("llama", "hidden_size", "64") == "key \"hidden_size\": \"64\" found, 32 to 16777216 expected");
    CHECK(config_error("llama", "num_hidden_layers", nullptr) == "key \"num_hidden_layers\": is missing");
    CHECK(config_error("llama", "num_key_value_heads", 3) ==
          "num_attention_heads: 4 found, a multiple of num_key_value_heads (3) expected");
    CHECK(config_error("llama", "rms_norm_eps", 0) == "key \"rms_norm_eps\": a number over 0 expected");
    CHECK(config_error("llama", "rope_theta", -1) == "key \"rope_theta\": a number over 0 expected");
    CHECK(config_error("mistral", "sliding_window", -1).find("key \"sliding_window\": -1 found") == 0);
    CHECK(config_error("gemma2", "hidden_activation", "relu").find("key \"hidden_activation\": \"relu\" is not available") == 0);
    CHECK(config_error("gemma2", "query_pre_attn_scalar", 0) == "key \"query_pre_attn_scalar\": a number over 0 expected");
    CHECK(config_error("llama", "rope_scaling", {{"type", "yarn"}, {"factor", 2}}) ==
          "key \"rope_scaling\": rope scaling \"yarn\" is not available in this version (linear and llama3 are)");
    CHECK(config_error("llama", "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}}).find("low_freq_factor over 0") < 60);
    CHECK(config_error("llama", "rope_scaling", {{"rope_type", "default"}}) == "accepted");
}

TEST_CASE("windows: in every layer, behind a layer, by a pattern, by a list, or not in use") {
    const auto windows = [](const std::string& architecture, const json::object& more) {
        SyntheticShape shape = plain_shape(DType::bf16);
        shape.architecture = architecture;
        shape.layers = 4;
        json::object config = folder_config(shape);
        for (const auto& [key, value] : more) config[key] = value;
        const Result<ModelConfig> parsed = parse_folder_config(json::serialize(config));
        return parsed ? parsed.value().layer_windows : std::vector<int32_t>{-1};
    };
    using Windows = std::vector<int32_t>;
    CHECK(windows("mistral", {{"sliding_window", 64}}) == Windows{64, 64, 64, 64});
    CHECK(windows("mistral", {{"sliding_window", nullptr}}).empty());
    CHECK(windows("mistral", {{"sliding_window", 0}}) == Windows{-1});
    CHECK(windows("qwen2", {{"sliding_window", 64}}).empty());
    CHECK(windows("qwen2", {{"sliding_window", 64}, {"use_sliding_window", true}, {"max_window_layers", 3}}) == Windows{0, 0, 0, 64});
    CHECK(windows("gemma2", {{"sliding_window", 64}}) == Windows{64, 0, 64, 0});
    CHECK(windows("gemma3", {{"sliding_window", 64}, {"sliding_window_pattern", 3}}) == Windows{64, 64, 0, 64});
    const json::array types{"full_attention", "sliding_attention", "full_attention", "full_attention"};
    CHECK(windows("gemma3", {{"sliding_window", 64}, {"layer_types", types}}) == Windows{0, 64, 0, 0});
    CHECK(windows("gemma3", {{"sliding_window", 64}, {"layer_types", json::array{"other"}}}) == Windows{-1});
}

TEST_CASE("what config.json lacks is what the reference's config class takes, and null is none") {
    const auto parsed = [](const std::string& architecture, const json::object& more, const std::vector<std::string>& without) {
        SyntheticShape shape = plain_shape(DType::bf16);
        shape.architecture = architecture;
        shape.layers = 4;
        json::object config = folder_config(shape);
        for (const auto& [key, value] : more) config[key] = value;
        for (const std::string& key : without) config.erase(key);
        const Result<ModelConfig> result = parse_folder_config(json::serialize(config));
        if (!result) FAIL(result.error());
        return result.value();
    };
    const std::vector<std::string> gemma{"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "sliding_window",
                                         "head_dim", "layer_types"};
    const ModelConfig gemma2 = parsed("gemma2", {{"num_attention_heads", 8}}, gemma);
    CHECK(gemma2.attention_soft_cap == 50.0f);
    CHECK(gemma2.logit_soft_cap == 30.0f);
    CHECK(gemma2.attention_scale == 1.0f / 16);
    CHECK(gemma2.head_dim == 256);
    CHECK(gemma2.layer_windows == std::vector<int32_t>{4096, 0, 4096, 0});
    const ModelConfig uncapped = parsed("gemma2", {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}}, {});
    CHECK(uncapped.attention_soft_cap == 0.0f);
    CHECK(uncapped.logit_soft_cap == 0.0f);
    const ModelConfig gemma3 = parsed("gemma3", {}, gemma);
    CHECK(gemma3.attention_soft_cap == 0.0f);
    CHECK(gemma3.attention_scale == 1.0f / 16);
    CHECK(gemma3.layer_windows.at(0) == 4096);
    CHECK(parsed("mistral", {}, {"sliding_window"}).layer_windows == std::vector<int32_t>(4, 4096));
    CHECK(parsed("mistral", {{"num_attention_heads", 16}}, {"num_key_value_heads", "sliding_window"}).num_kv_heads == 8);
    CHECK(parsed("llama", {{"num_key_value_heads", nullptr}, {"num_attention_heads", 4}}, {}).num_kv_heads == 4);
    CHECK(parsed("qwen3", {}, {"head_dim"}).head_dim == 128);
    const json::object in_use{{"use_sliding_window", true}, {"num_hidden_layers", 30}};
    const std::vector<int32_t> windows = parsed("qwen2", in_use, {"max_window_layers", "sliding_window"}).layer_windows;
    CHECK(windows.at(27) == 0);
    CHECK(windows.at(28) == 4096);
}

TEST_CASE("rope scaling: linear divides all frequencies, llama3 the slow ones, in both spellings of the config") {
    SyntheticShape shape = plain_shape(DType::f32);
    json::object config = folder_config(shape);
    config["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
    CHECK(parse_folder_config(json::serialize(config)).value().rope_factors == std::vector<float>(8, 4.0f));
    config.erase("rope_scaling");
    config.erase("rope_theta");
    config["rope_parameters"] = {{"rope_theta", 500000}, {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1},
                                 {"high_freq_factor", 4}, {"original_max_position_embeddings", 64}};
    const ModelConfig parsed = parse_folder_config(json::serialize(config)).value();
    CHECK(parsed.rope_base == 500000);
    REQUIRE(parsed.rope_factors.size() == 8);
    // Waves of 6.3, 32.4, 167, ... positions beside a context of 64: unchanged, between, divided.
    CHECK(parsed.rope_factors[0] == 1.0f);
    CHECK(parsed.rope_factors[1] > 1.0f);
    CHECK(parsed.rope_factors[1] < 8.0f);
    CHECK(parsed.rope_factors[2] == 8.0f);
}
