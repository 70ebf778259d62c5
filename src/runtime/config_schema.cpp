// The table of configuration keys; see config_schema.h.
#include "runtime/config_schema.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace takt {
namespace {

constexpr double kMaxTokens = 1 << 26;

void add_model_and_device(Config& c, std::vector<ConfigKey>& keys) {
    keys.push_back({"model", "path", &c.model.path, {}, {}, {}, {}});
    keys.push_back({"model", "name", &c.model.name, {}, {}, {}, {}});
    keys.push_back({"model", "chat_template", &c.model.chat_template, {}, {}, {}, {}});
    keys.push_back({"model", "max_context", &c.model.max_context, 0, kMaxTokens, {}, {}});
    keys.push_back({"device", "kind", &c.device.kind, {}, {}, {"auto", "cuda", "cpu", "sim"}, {}});
    keys.push_back({"device", "index", &c.device.index, 0, 63, {}, {}});
    keys.push_back({"device", "threads", &c.device.threads, 0, 1024, {}, {}});
    keys.push_back({"device", "memory_budget_mib", &c.device.memory_budget_mib, 0, 1e9, {}, {}});
    keys.push_back({"device", "memory_fraction", &c.device.memory_fraction, 0.01, 1.0, {}, {}});
    keys.push_back({"device", "graphs", &c.device.graphs, {}, {}, {}, {}});
    keys.push_back({"device", "graph_batch_sizes", &c.device.graph_batch_sizes, 1, 65536, {}, {}});
    keys.push_back({"device", "wait", &c.device.wait, {}, {}, {"predict", "spin", "block"}, {}});
    keys.push_back({"device", "placement", &c.device.placement, {}, {}, {"auto", "apart", "free"}, {}});
    keys.push_back({"device", "deterministic", &c.device.deterministic, {}, {}, {}, {}});
    keys.push_back({"device", "activations", &c.device.activations, {}, {},
                    {"auto", "int16", "int8", "bf16", "float32"}, {}});
    keys.push_back({"device", "isa", &c.device.isa, {}, {}, {"auto", "avx512", "avx2", "neon", "portable"}, {}});
    keys.push_back({"device", "on_lost", &c.device.on_lost, {}, {}, {"exit", "restart"}, {"restart"}});
    keys.push_back({"kv", "block_tokens", &c.kv.block_tokens, 8, 64, {}, {}});
    keys.push_back({"kv", "dtype", &c.kv.dtype, {}, {}, {"auto", "f32", "f16", "bf16", "int8", "fp8"}, {"fp8"}});
    keys.push_back({"kv", "prefix_cache", &c.kv.prefix_cache, {}, {}, {}, {}});
    keys.push_back({"kv", "host_offload_mib", &c.kv.host_offload_mib, 0, 1e9, {}, {}});
}

void add_scheduler_and_server(Config& c, std::vector<ConfigKey>& keys) {
    keys.push_back({"scheduler", "policy", &c.scheduler.policy, {}, {}, {"time-sliced", "fixed-chunk"}, {}});
    keys.push_back({"scheduler", "fixed_chunk_tokens", &c.scheduler.fixed_chunk_tokens, 1, kMaxTokens, {}, {}});
    keys.push_back({"scheduler", "max_running", &c.scheduler.max_running, 1, 4096, {}, {}});
    keys.push_back({"scheduler", "max_waiting", &c.scheduler.max_waiting, 0, 1e6, {}, {}});
    keys.push_back({"scheduler", "pipeline_depth", &c.scheduler.pipeline_depth, 0, 1, {}, {}});
    keys.push_back({"scheduler", "prefill_stream", &c.scheduler.prefill_stream, {}, {}, {}, {}});
    keys.push_back({"scheduler", "profile_cache", &c.scheduler.profile_cache, {}, {}, {}, {}});
    keys.push_back({"server", "host", &c.server.host, {}, {}, {}, {}});
    keys.push_back({"server", "port", &c.server.port, 0, 65535, {}, {}});
    keys.push_back({"server", "tls_cert", &c.server.tls_cert, {}, {}, {}, {}});
    keys.push_back({"server", "tls_key", &c.server.tls_key, {}, {}, {}, {}});
    keys.push_back({"server", "max_message_kib", &c.server.max_message_kib, 1, 1 << 20, {}, {}});
    keys.push_back({"server", "max_connections", &c.server.max_connections, 1, 1e6, {}, {}});
    keys.push_back({"server", "max_connections_per_address", &c.server.max_connections_per_address, 0, 1e6, {}, {}});
    keys.push_back({"server", "header_seconds", &c.server.header_seconds, 0.1, 3600, {}, {}});
    keys.push_back({"server", "ping_seconds", &c.server.ping_seconds, 0.1, 3600, {}, {}});
    keys.push_back({"server", "drain_seconds", &c.server.drain_seconds, 0, 86400, {}, {}});
    keys.push_back({"server", "allowed_origins", &c.server.allowed_origins, {}, {}, {}, {}});
    keys.push_back({"server", "admin", &c.server.admin, {}, {}, {}, {}});
    keys.push_back({"sim", "profile", &c.sim.profile, {}, {}, {}, {}});
    keys.push_back({"sim", "scale", &c.sim.scale, 0, 1e6, {}, {}});
    keys.push_back({"sim", "noise", &c.sim.noise, 0, 1, {}, {}});
    keys.push_back({"sim", "seed", &c.sim.seed, 0, 9e18, {}, {}});
    keys.push_back({"sim", "faults", &c.sim.faults, {}, {}, {}, {}});
    keys.push_back({"log", "level", &c.log_section.level, {}, {}, {"debug", "info", "warning", "error", "off"}, {}});
    keys.push_back({"log", "format", &c.log_section.format, {}, {}, {"text", "json"}, {}});
    keys.push_back({"log", "flight_recorder_steps", &c.log_section.flight_recorder_steps, 0, 1 << 24, {}, {}});
}

std::string check_number(const ConfigKey& key, double value) {
    if (std::isfinite(value) && value >= key.min && value <= key.max) return {};
    return "expected a number from " + number_text(key.min) + " to " + number_text(key.max) + ", found " +
           number_text(value);
}

std::string check_word(const ConfigKey& key, const std::string& value) {
    if (key.words.empty()) return {};
    if (std::find(key.unavailable.begin(), key.unavailable.end(), value) != key.unavailable.end()) {
        return "\"" + value + "\" is not available in this version";
    }
    if (std::find(key.words.begin(), key.words.end(), value) != key.words.end()) return {};
    std::string text = "expected one of";
    for (std::string_view word : key.words) text += " \"" + std::string(word) + "\"";
    return text + ", found \"" + value + "\"";
}

bool is_hex_digest(const std::string& text) {
    return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char ch) {
               return (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'f') || (ch >= 'A' && ch <= 'F');
           });
}

std::optional<Contradiction> check_classes(const Config& c) {
    std::vector<std::string> names{"default"};
    for (size_t i = 0; i < c.sla.classes.size(); ++i) {
        const SlaClass& sla = c.sla.classes[i];
        if (sla.name.empty()) return Contradiction{"sla.class", "name", "every [[sla.class]] needs a name", i};
        if (std::find(names.begin(), names.end(), sla.name) != names.end()) {
            return Contradiction{"sla.class", "name", "the class \"" + sla.name + "\" is named twice", i};
        }
        names.push_back(sla.name);
    }
    std::vector<std::string> tenants;
    for (size_t i = 0; i < c.tenants.size(); ++i) {
        const TenantSection& tenant = c.tenants[i];
        if (tenant.name.empty()) return Contradiction{"tenant", "name", "every [[tenant]] needs a name", i};
        if (std::find(tenants.begin(), tenants.end(), tenant.name) != tenants.end()) {
            return Contradiction{"tenant", "name", "the tenant \"" + tenant.name + "\" is named twice", i};
        }
        tenants.push_back(tenant.name);
        if (tenant.key_sha256.empty() == tenant.key_env.empty()) {
            return Contradiction{"tenant", "key_sha256",
                                 "tenant \"" + tenant.name + "\" needs exactly one of key_sha256 and key_env", i};
        }
        if (!tenant.key_sha256.empty() && !is_hex_digest(tenant.key_sha256)) {
            // Never the text: it may be the key itself.
            const std::string found = std::to_string(tenant.key_sha256.size()) + " characters";
            return Contradiction{"tenant", "key_sha256", "expected 64 hexadecimal digits, found " + found, i};
        }
        if (!tenant.sla_class.empty() && std::find(names.begin(), names.end(), tenant.sla_class) == names.end()) {
            return Contradiction{"tenant", "class", "no class is named \"" + tenant.sla_class + "\"", i};
        }
    }
    return std::nullopt;
}

}  // namespace

std::string number_text(double value) {
    std::ostringstream out;
    if (value == std::floor(value) && std::abs(value) < 1e15) {
        out << static_cast<int64_t>(value);
    } else {
        out << value;
    }
    return out.str();
}

std::vector<ConfigKey> sla_class_keys(SlaClass& sla, std::string_view section) {
    return {
        {section, "itl_ms", &sla.itl_ms, 0.1, 3.6e6, {}, {}},
        {section, "ttft_ms", &sla.ttft_ms, 0.1, 8.64e7, {}, {}},
        {section, "mode", &sla.mode, {}, {}, {"strict", "envelope"}, {}},
        {section, "on_miss", &sla.on_miss, {}, {}, {"queue", "refuse", "demote"}, {}},
        {section, "weight", &sla.weight, 1e-3, 1e3, {}, {}},
    };
}

std::vector<ConfigKey> tenant_keys(TenantSection& t) {
    return {
        {"tenant", "name", &t.name, {}, {}, {}, {}},
        {"tenant", "key_sha256", &t.key_sha256, {}, {}, {}, {}},
        {"tenant", "key_env", &t.key_env, {}, {}, {}, {}},
        {"tenant", "class", &t.sla_class, {}, {}, {}, {}},
        {"tenant", "weight", &t.weight, 1e-3, 1e3, {}, {}},
        {"tenant", "max_running", &t.max_running, 0, 1e6, {}, {}},
        {"tenant", "max_waiting", &t.max_waiting, 0, 1e6, {}, {}},
        {"tenant", "max_connections", &t.max_connections, 0, 1e6, {}, {}},
        {"tenant", "tokens_per_minute", &t.tokens_per_minute, 0, 1e12, {}, {}},
        {"tenant", "shared_prefix", &t.shared_prefix, {}, {}, {}, {}},
    };
}

std::vector<ConfigKey> config_keys(Config& config) {
    std::vector<ConfigKey> keys;
    add_model_and_device(config, keys);
    add_scheduler_and_server(config, keys);
    for (ConfigKey& key : sla_class_keys(config.sla, "sla")) keys.push_back(std::move(key));
    return keys;
}

std::string check_value(const ConfigKey& key) {
    return std::visit(
        [&](auto* target) -> std::string {
            using T = std::remove_pointer_t<decltype(target)>;
            if constexpr (std::is_same_v<T, std::string>) {
                return check_word(key, *target);
            } else if constexpr (std::is_same_v<T, std::optional<double>>) {
                return target->has_value() ? check_number(key, **target) : std::string();
            } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
                for (int32_t value : *target) {
                    std::string text = check_number(key, value);
                    if (!text.empty()) return text;
                }
                return {};
            } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
                return check_number(key, static_cast<double>(*target));
            } else {
                return {};
            }
        },
        key.target);
}

std::string refuse_cuda_kv(const std::string& name) {
    if (name == "auto" || name == "f16" || name == "bf16") return {};
    return "\"" + name + "\" is not available on CUDA devices in this version";
}

std::optional<Contradiction> find_contradiction(const Config& c) {
    const int32_t block = c.kv.block_tokens;
    if (block != 8 && block != 16 && block != 32 && block != 64) {
        return Contradiction{"kv", "block_tokens", "expected 8, 16, 32 or 64, found " + std::to_string(block)};
    }
    if (c.kv.host_offload_mib != 0) {
        return Contradiction{"kv", "host_offload_mib", "a value over 0 is not available in this version"};
    }
    if (!c.device.graph_batch_sizes.empty()) {
        return Contradiction{"device", "graph_batch_sizes", "a list that is not empty is not available in this version"};
    }
    if (c.scheduler.prefill_stream) {
        return Contradiction{"scheduler", "prefill_stream", "\"true\" is not available in this version"};
    }
    if (c.server.tls_cert.empty() != c.server.tls_key.empty()) {
        return Contradiction{"server", "tls_cert", "tls_cert and tls_key go together"};
    }
    if (const std::string why = refuse_cuda_kv(c.kv.dtype); c.device.kind == "cuda" && !why.empty()) {
        return Contradiction{"kv", "dtype", why};
    }
    if (c.device.activations == "float32" && c.kv.dtype != "auto" && c.kv.dtype != "f32") {
        return Contradiction{"kv", "dtype", "device.activations = \"float32\" needs f32, found \"" + c.kv.dtype + "\""};
    }
    return check_classes(c);
}

}  // namespace takt
