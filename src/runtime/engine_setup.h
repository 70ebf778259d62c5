// From a Config to everything an engine is built of: model file, device, model, tokenizer, template, memory plan, options.
// Runs once, on the engine's thread, before the core exists; plan_memory and inspect use the same pieces without loading.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <takt/config.h>
#include <takt/metrics.h>

#include "kernels/device.h"
#include "model/chat_template.h"
#include "model/forward.h"
#include "model/model_file.h"
#include "model/tokenizer.h"
#include "runtime/clock.h"
#include "runtime/engine_core.h"
#include "runtime/log.h"

namespace takt {

/// Outlives the core built from it. Members are destroyed bottom up: the model before its device.
struct LoadedModel {
    std::unique_ptr<ModelFile> file;         ///< null: sim device without a model file, or everything is loaded
    std::unique_ptr<Device> device;
    std::optional<Tokenizer> tokenizer;
    std::optional<ChatTemplate> chat_template;
    std::string no_template;                 ///< why there is none
    std::unique_ptr<Model> model;
    CoreOptions core_options;
    MemoryPlan plan;
    ModelInfo info;
    int32_t max_context = 0;
};

/// All but the weights and the template: what the memory plan needs. @throws config_error, load_error.
std::unique_ptr<LoadedModel> plan_model(const Config& config, const Clock& clock, const Logger& log);

/// @throws config_error, load_error; the latter before weights are read where the plan does not fit.
std::unique_ptr<LoadedModel> load_everything(const Config& config, const Clock& clock, const Logger& log);

/// The device that `config` names. @throws load_error if it does not answer.
std::unique_ptr<Device> open_device(const Config& config, const Clock& clock, const Logger& log);

/// Sizes of everything for this model and device; `options` gets the number of blocks. @throws config_error where it cannot fit.
MemoryPlan make_memory_plan(const Config& config, Device& device, const Model& model, int32_t max_context, RunnerOptions& options);

/// The scheduler's part of the configuration.
SchedulerConfig scheduler_config(const Config& config, const Device& device, int32_t max_context);

}  // namespace takt
