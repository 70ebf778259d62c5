// quantization_config of a model folder's config.json; see packed_weights.h.
#include <string>

#include "model/json_keys.h"
#include "model/packed_weights.h"

namespace takt {
namespace {

using Layout = PackedFormat::Layout;

std::string not_available(const std::string& found, const char* known) {
    return "\"" + found + "\" is not available in this version (" + known + ")";
}

void read_group_size(JsonKeys& keys, PackedFormat& f) {
    f.group_size = keys.integer("group_size", -1, 1 << 24, -1);
    if (f.group_size == 0 || (f.group_size > 0 && f.group_size % 32 != 0)) {
        keys.fail("group_size", std::to_string(f.group_size) + " found, -1 or a multiple of 32 expected");
    }
}

void read_gptq(JsonKeys& keys, PackedFormat& f) {
    f.layout = Layout::gptq;
    f.bits = keys.integer("bits", 1, 16);
    if (f.bits != 3 && f.bits != 4 && f.bits != 8) keys.fail("bits", std::to_string(f.bits) + " found, 3, 4 or 8 expected");
    read_group_size(keys, f);
    const std::string stored = keys.text("checkpoint_format", "gptq");
    if (stored != "gptq" && stored != "gptq_v2") keys.fail("checkpoint_format", not_available(stored, "gptq and gptq_v2 are"));
    f.zero_point_bias = stored == "gptq" ? 1 : 0;
}

void read_awq(JsonKeys& keys, PackedFormat& f) {
    f.layout = Layout::awq;
    f.bits = keys.integer("bits", 4, 4);
    read_group_size(keys, f);
    if (!keys.flag("zero_point", true)) keys.fail("zero_point", "AWQ without zero points is not available in this version");
    const std::string stored = keys.text("version", "gemm");
    if (stored != "gemm" && stored != "GEMM") keys.fail("version", not_available(stored, "gemm is"));
}

/// One scheme for all matrices. What it says of activations is not followed: takt rounds them less.
void read_scheme(JsonKeys& keys, PackedFormat& f) {
    f.bits = keys.integer("num_bits", 1, 16);
    if (f.bits != 4 && f.bits != 8) keys.fail("num_bits", std::to_string(f.bits) + " found, 4 or 8 expected");
    const std::string type = keys.text("type", "int");
    if (type != "int") keys.fail("type", not_available(type, "int is"));
    f.has_zero_points = !keys.flag("symmetric", true);
    const std::string strategy = keys.text("strategy", keys.find("group_size") != nullptr ? "group" : "channel");
    if (strategy != "group" && strategy != "channel") keys.fail("strategy", not_available(strategy, "group and channel are"));
    if (strategy == "group") {
        read_group_size(keys, f);
    } else {
        f.group_size = -1;
    }
}

void read_compressed(JsonKeys& keys, PackedFormat& f) {
    f.layout = Layout::compressed_tensors;
    const std::string stored = keys.text("format");
    if (stored != "pack-quantized" && stored != "int-quantized") {
        keys.fail("format", not_available(stored, "pack-quantized and int-quantized are"));
    }
    for (const char* other : {"kv_cache_scheme", "sparsity_config", "transform_config"}) {
        const json::value* v = keys.find(other);
        if (v != nullptr && !(v->is_object() && v->get_object().empty())) keys.fail(other, "is not available in this version");
    }
    const json::value* groups = keys.find("config_groups");
    if (groups == nullptr || !groups->is_object() || groups->get_object().size() != 1) {
        return keys.fail("config_groups", "one group expected: several are not available in this version");
    }
    const json::value& group = groups->get_object().begin()->value();
    const json::value* weights = group.is_object() ? group.get_object().if_contains("weights") : nullptr;
    if (weights == nullptr || !weights->is_object()) return keys.fail("config_groups", "a scheme of \"weights\" expected");
    JsonKeys scheme(weights->get_object(), "quantization_config.config_groups.weights.");
    read_scheme(scheme, f);
    if (keys.error.empty()) keys.error = scheme.error;
    if (f.bits == 4 && stored == "int-quantized") keys.fail("format", "int-quantized of 4 bits is not available in this version");
}

}  // namespace

Result<std::optional<PackedFormat>> parse_packed_format(std::string_view config_json) {
    Result<json::object> root = parse_object(config_json);
    if (!root) return Error{root.error()};
    const json::value* found = root.value().if_contains("quantization_config");
    if (found == nullptr || found->is_null()) return std::optional<PackedFormat>();
    if (!found->is_object()) return Error{"key \"quantization_config\": an object expected"};
    JsonKeys keys(found->get_object(), "quantization_config.");
    const std::string method = keys.text("quant_method");
    PackedFormat f;
    if (method == "gptq") {
        read_gptq(keys, f);
    } else if (method == "awq") {
        read_awq(keys, f);
    } else if (method == "compressed-tensors") {
        read_compressed(keys, f);
    } else {
        keys.fail("quant_method", not_available(method, "gptq, awq and compressed-tensors are"));
    }
    if (!keys.error.empty()) return Error{keys.error};
    return std::optional<PackedFormat>(f);
}

}  // namespace takt
