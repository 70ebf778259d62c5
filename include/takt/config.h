// Config: the sections of config.toml as plain structs with their defaults. Ranges are checked by `validate` and by the reader.
// docs/configuration.md and the repository's config.toml describe every key.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace takt {

enum class LogLevel { debug, info, warning, error, off };

/// One log record. Called from any of the engine's threads; must not block.
struct LogRecord {
    LogLevel level = LogLevel::info;
    std::string_view component;
    std::string_view message;
};
using LogSink = std::function<void(const LogRecord&)>;

/// A phase of loading, for progress bars. Called on the loading thread.
struct LoadProgress {
    std::string_view phase;
    uint64_t done = 0;
    uint64_t total = 0;
};

struct ModelSection {
    std::string path;            ///< a .gguf file or a Hugging Face folder; empty only with device.kind = sim
    std::string name;            ///< empty: the file's or folder's name
    std::string chat_template;   ///< a file; empty: the model's own
    int32_t max_context = 0;     ///< tokens; 0: the model's
};

struct DeviceSection {
    std::string kind = "auto";             ///< auto, cuda, cpu, sim
    int32_t index = 0;
    int32_t threads = 0;                   ///< 0: all cores
    int64_t memory_budget_mib = 0;         ///< 0: memory_fraction of what is free
    std::optional<double> memory_fraction; ///< unset: 0.9 on CUDA, 0.25 on the CPU
    bool graphs = true;
    std::vector<int32_t> graph_batch_sizes;
    std::string wait = "predict";          ///< predict, spin, block
    std::string placement = "auto";        ///< auto, apart, free
    bool deterministic = false;
    std::string activations = "auto";      ///< auto, int16, int8, bf16, float32
    std::string isa = "auto";              ///< auto, avx512, avx2, neon, portable: instructions of the CPU device
    std::string on_lost = "exit";          ///< exit, restart
};

struct KvSection {
    int32_t block_tokens = 16;
    std::string dtype = "auto";            ///< auto, f32, f16, bf16, int8, fp8
    bool prefix_cache = true;
    int64_t host_offload_mib = 0;
};

struct SchedulerSection {
    std::string policy = "time-sliced";    ///< time-sliced, fixed-chunk
    int32_t fixed_chunk_tokens = 512;
    int32_t max_running = 64;
    int32_t max_waiting = 1024;
    int32_t pipeline_depth = 1;            ///< 0 or 1
    bool prefill_stream = false;
    std::string profile_cache;
};

struct SlaClass {
    std::string name = "default";
    double itl_ms = 40;
    double ttft_ms = 2000;
    std::string mode = "strict";           ///< strict, envelope
    std::string on_miss = "queue";         ///< queue, refuse, demote
    double weight = 1.0;
};

struct SlaSection : SlaClass {
    std::vector<SlaClass> classes;         ///< [[sla.class]]
};

struct TenantSection {
    std::string name;
    std::string key_sha256;
    std::string key_env;
    std::string sla_class;                 ///< key `class`
    double weight = 1.0;
    int32_t max_running = 0;               ///< 0: no limit of its own
    int32_t max_waiting = 0;
    int32_t max_connections = 0;
    int64_t tokens_per_minute = 0;
    bool shared_prefix = false;
};

struct ServerSection {
    std::string host = "127.0.0.1";
    int32_t port = 8480;                   ///< 0: any free one
    std::string tls_cert;
    std::string tls_key;
    int64_t max_message_kib = 4096;
    int32_t max_connections = 16384;
    int32_t max_connections_per_address = 0;
    double header_seconds = 10;
    double ping_seconds = 15;
    double drain_seconds = 30;
    std::vector<std::string> allowed_origins;
    bool admin = false;
};

struct SimSection {
    std::string profile = "h100-7b";
    double scale = 1.0;
    double noise = 0.015;
    uint64_t seed = 1;
    bool faults = false;
};

struct LogSection {
    std::string level = "info";
    std::string format = "text";
    int32_t flight_recorder_steps = 4096;
};

struct Config {
    ModelSection model;
    DeviceSection device;
    KvSection kv;
    SchedulerSection scheduler;
    SlaSection sla;
    std::vector<TenantSection> tenants;
    ServerSection server;
    SimSection sim;
    LogSection log_section;                        ///< [log]

    LogSink log;                                   ///< where records go; empty: nowhere
    std::function<void(const LoadProgress&)> on_progress;
};

/// Reads a TOML file and applies `section.key=value` overrides in order (`path` empty: built-in defaults only).
/// @throws config_error with file, line and column for unknown keys, wrong types, values out of range and contradictions.
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {});

/// The checks of load_config on a Config built in code. @throws config_error.
void validate(const Config& config);

}  // namespace takt
