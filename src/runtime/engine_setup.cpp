// Device, model and options from the configuration; see engine_setup.h. The memory plan is memory_plan.cpp.
#include "runtime/engine_setup.h"

#include <algorithm>

#include <takt/error.h>

#include "kernels/device_factory.h"
#include "kernels/ops.h"
#include "model/llama.h"
#include "model/sim_model.h"
#include "runtime/config_schema.h"
#include "runtime/scheduler_setup.h"
#include "runtime/text_file.h"

namespace takt {
namespace {

constexpr int32_t kSimContext = 131072;
constexpr int32_t kMaxCpuRows = 512;   // beyond it a CPU step's cost is linear in its rows

std::string file_name(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const size_t slash = path.find_last_of('/');
    std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
    if (name.size() > 5 && name.substr(name.size() - 5) == ".gguf") name.resize(name.size() - 5);
    return name;
}

CpuArithmetic arithmetic_of(const std::string& activations) {
    if (activations == "int8") return CpuArithmetic::int8;
    if (activations == "bf16") return CpuArithmetic::bf16;
    if (activations == "float32") return CpuArithmetic::float32;
    return CpuArithmetic::int16;
}

CpuIsa isa_of(const std::string& isa) {
    if (isa == "avx512") return CpuIsa::avx512;
    if (isa == "avx2") return CpuIsa::avx2;
    if (isa == "neon") return CpuIsa::neon;
    if (isa == "portable") return CpuIsa::portable;
    return CpuIsa::automatic;
}

DType kv_type_of(const Config& config, const Device& device) {
    const std::string& name = config.kv.dtype;
    if (device.caps().kind == DeviceKind::cuda) {
        const std::string why = refuse_cuda_kv(name);
        if (!why.empty()) throw config_error("kv.dtype: " + why);
    }
    if (name == "f32") return DType::f32;
    if (name == "f16") return DType::f16;
    if (name == "bf16") return DType::bf16;
    if (name == "int8") return DType::i8;
    if (device.caps().kind == DeviceKind::cpu && config.device.activations == "float32") return DType::f32;
    return device.caps().kv_type;
}

std::unique_ptr<Device> take(Result<std::unique_ptr<Device>> made) {
    if (!made) throw load_error(errc::device_lost, made.error());
    return std::move(made).value();
}

void load_template(const Config& config, LoadedModel& m) {
    std::string source;
    if (!config.model.chat_template.empty()) {
        source = read_text_file(config.model.chat_template);
    } else if (m.file == nullptr) {
        source = byte_chat_template();
    } else if (m.file->chat_template()) {
        source = *m.file->chat_template();
    } else {
        m.no_template = "the model has no chat template: set model.chat_template to a file";
        return;
    }
    Result<ChatTemplate> parsed = ChatTemplate::parse(source);
    if (parsed) {
        m.chat_template.emplace(std::move(parsed).value());
    } else if (!config.model.chat_template.empty()) {
        throw config_error(config.model.chat_template + ": " + parsed.error());
    } else {
        m.no_template = "the model's chat template cannot be read: " + parsed.error();
    }
}

void load_tokenizer(LoadedModel& m) {
    TokenizerSpec spec;
    if (m.file == nullptr) {
        spec = byte_tokenizer_spec();
    } else {
        Result<TokenizerSpec> read = m.file->tokenizer_spec();
        if (!read) throw load_error(errc::bad_request, read.error());
        spec = std::move(read).value();
    }
    Result<Tokenizer> made = make_tokenizer(spec);
    if (!made) throw load_error(errc::bad_request, (m.file ? m.file->path() : "byte vocabulary") + ": " + made.error());
    m.tokenizer.emplace(std::move(made).value());
}

std::unique_ptr<Model> make_sim_model(const LoadedModel& m) {
    return std::make_unique<SimModel>(*m.device, m.tokenizer->vocab_size(), m.max_context, m.tokenizer->eos());
}

LoadOptions load_options(const LoadedModel& m) {
    LoadOptions options;
    options.max_context = m.max_context;
    options.num_tokens = m.tokenizer->vocab_size();
    return options;
}

void load_model(const Config& config, LoadedModel& m) {
    if (m.device->caps().kind == DeviceKind::sim) {
        m.model = make_sim_model(m);
        return;
    }
    LoadOptions options = load_options(m);
    options.on_progress = [&](std::string_view phase, uint64_t done, uint64_t total) {
        if (config.on_progress) config.on_progress({phase, done, total});
    };
    Result<std::unique_ptr<Model>> made = LlamaModel::load(*m.device, *m.file, options);
    if (!made) throw load_error(errc::internal, made.error());
    m.model = std::move(made).value();
}

bool is_quantised(const ModelTensors& tensors) {
    return std::any_of(tensors.layers.begin(), tensors.layers.end(),
                       [](const LayerTensors& layer) { return dtype_info(layer.down.type).block_elements > 1; });
}

/// Options of core and runner, and the memory plan with the number of KV blocks: from shapes alone, before memory is taken.
void plan_everything(const Config& config, LoadedModel& m) {
    CoreOptions& core = m.core_options;
    core.scheduler = scheduler_config(config, *m.device, m.max_context);
    core.pipeline_depth = config.scheduler.pipeline_depth;
    core.prefix_cache = config.kv.prefix_cache;
    core.recorder_steps = config.log_section.flight_recorder_steps;
    RunnerOptions& runner = core.runner;
    runner.kv_type = kv_type_of(config, *m.device);
    runner.block_tokens = config.kv.block_tokens;
    runner.max_running = config.scheduler.max_running;
    runner.max_context = m.max_context;
    runner.row_ladder = core.scheduler.row_ladder;
    runner.max_plan_rows = core.scheduler.fixed_chunk ? config.scheduler.fixed_chunk_tokens + config.scheduler.max_running
                                                      : runner.row_ladder.back();
    runner.graphs = config.device.graphs;
    const bool is_sim = m.device->caps().kind == DeviceKind::sim;
    const std::unique_ptr<Model> outline = is_sim ? make_sim_model(m) : LlamaModel::outline(*m.device, *m.file, load_options(m));
    m.plan = make_memory_plan(config, *m.device, *outline, m.max_context, runner);
    const bool unpacks = m.device->caps().kind == DeviceKind::cuda && m.file && is_quantised(m.file->tensors());
    if (unpacks && m.plan.note.empty()) {
        m.plan.note = "quantised weights are unpacked to bf16: " + std::to_string(m.file->tensor_bytes() >> 20) + " MiB in the file";
    }
}

CostRoofline roofline_of(const Device& device, const Model& model, const RunnerOptions& runner) {
    const ModelCosts costs = model.costs();
    const DeviceCaps& caps = device.caps();
    CostRoofline r;
    r.bytes_per_second = caps.read_bytes_per_second;
    r.operations_per_second = caps.operations_per_second;
    r.launch_seconds = caps.launch_seconds;
    r.weight_bytes = costs.weight_bytes;
    r.operations_per_row = costs.operations_per_row;
    const auto block_bytes = [&](DType type) { return static_cast<double>(model.kv_layout(type, runner.block_tokens, 1).block_bytes()); };
    r.kv_bytes_per_token = costs.kv_bytes_per_token * block_bytes(runner.kv_type) / block_bytes(DType::f16);   // scales included
    r.operations_per_pair = costs.operations_per_pair;
    return r;
}

ModelInfo info_of(const Config& config, const LoadedModel& m) {
    ModelInfo info;
    info.path = config.model.path;
    info.name = !config.model.name.empty() ? config.model.name : m.file ? file_name(config.model.path) : "sim";
    info.architecture = m.model->config().architecture;
    info.vocab = m.tokenizer->vocab_size();
    info.max_context = m.max_context;
    info.weight_bytes = static_cast<int64_t>(m.model->weight_bytes());
    info.device = m.device->caps().name;
    info.created_unix = unix_seconds();
    return info;
}

int32_t context_of(const Config& config, const LoadedModel& m) {
    const int32_t own = m.file ? m.file->config().max_context : kSimContext;
    if (config.model.max_context > own) {
        throw config_error("model.max_context: " + std::to_string(config.model.max_context) + " found, the model has " +
                           std::to_string(own));
    }
    return config.model.max_context > 0 ? config.model.max_context : own;
}

}  // namespace

std::unique_ptr<Device> open_device(const Config& config, const Clock& clock, const Logger& log) {
    const std::string& kind = config.device.kind;
    if (kind == "sim") {
        SimDeviceOptions o;
        o.profile = config.sim.profile;
        if (o.profile != "h100-7b") {
            o.profile = read_text_file(config.sim.profile);
            o.profile_is_text = true;
        }
        o.scale = config.sim.scale;
        o.noise = config.sim.noise;
        o.seed = config.sim.seed;
        o.faults = config.sim.faults;
        return take(make_sim_device(o, clock.source()));
    }
    if (kind == "cuda" || kind == "auto") {
        Result<std::unique_ptr<Device>> made = make_cuda_device({config.device.index, config.device.deterministic}, clock.source());
        // A CUDA device without the model's operations cannot run a model: say so, or fall back where that was left open.
        const bool complete = made && made.value()->ops().attention != nullptr;
        if (complete) return std::move(made).value();
        const std::string why = made ? "CUDA model operations are not available in this version" : made.error();
        if (kind == "cuda") throw load_error(errc::device_lost, why);
        // A machine without a GPU is nothing to speak of; a GPU that cannot be used is.
        log.write(cuda_is_available() ? LogLevel::warning : LogLevel::debug, "device", why + ": the CPU runs the model");
    }
    CpuDeviceOptions o;
    o.num_threads = config.device.threads;
    o.arithmetic = arithmetic_of(config.device.activations);
    o.isa = isa_of(config.device.isa);
    return take(make_cpu_device(o, clock.source()));
}

SchedulerConfig scheduler_config(const Config& config, const Device& device, int32_t max_context) {
    SchedulerConfig s = scheduler_basics(config, max_context);
    const bool is_cpu = device.caps().kind == DeviceKind::cpu;
    const int32_t max_rows = is_cpu ? std::max(kMaxCpuRows, s.max_running) : std::max(device.caps().max_rows, s.max_running);
    s.row_ladder = device.row_ladder(s.max_running, max_rows);
    s.rows_are_data = device.caps().rows_are_data && is_cpu;
    return s;
}

std::unique_ptr<LoadedModel> plan_model(const Config& config, const Clock& clock, const Logger& log) {
    validate(config);
    auto m = std::make_unique<LoadedModel>();
    if (!config.model.path.empty()) {
        Result<std::unique_ptr<ModelFile>> file = ModelFile::open(config.model.path);
        if (!file) throw load_error(errc::bad_request, file.error());
        m->file = std::move(file).value();
    } else if (config.device.kind != "sim") {
        throw config_error("model.path: empty, a .gguf file or a Hugging Face folder expected; only device.kind = \"sim\" runs without");
    }
    m->max_context = context_of(config, *m);
    m->device = open_device(config, clock, log);
    load_tokenizer(*m);
    plan_everything(config, *m);
    return m;
}

std::unique_ptr<LoadedModel> load_everything(const Config& config, const Clock& clock, const Logger& log) {
    std::unique_ptr<LoadedModel> m = plan_model(config, clock, log);
    if (!m->plan.fits) throw load_error(errc::bad_request, m->plan.note);
    load_template(config, *m);
    load_model(config, *m);
    m->core_options.roofline = roofline_of(*m->device, *m->model, m->core_options.runner);
    m->info = info_of(config, *m);
    m->file.reset();   // all of it was copied: its mapped pages, and weights turned from other layouts, would count beside the device's
    return m;
}

}  // namespace takt
