// Engine: a handle over EngineState.
#include <takt/engine.h>

#include "runtime/engine_state.h"

namespace takt {

Engine::Engine() = default;
Engine::Engine(std::shared_ptr<detail::EngineState> state) : state_(std::move(state)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

void Engine::start_load(boost::asio::any_io_executor executor, Config config, LoadHandler handler) {
    detail::EngineState::start(std::make_shared<detail::EngineState>(std::move(executor), std::move(config)),
                               std::move(handler));
}

void Engine::start_submit(Request request, std::shared_ptr<Refusal> refusal, SubmitHandler handler) {
    state_->submit(std::move(request), std::move(refusal), std::move(handler));
}

void Engine::start_drain(std::chrono::steady_clock::time_point deadline, DrainHandler handler) {
    state_->drain(deadline, std::move(handler));
}

MetricsSnapshot Engine::metrics() const { return state_->core().metrics().snapshot(); }
HealthSnapshot Engine::health() const { return state_->core().health(state_->clock().now_ns()); }
ModelInfo Engine::model() const { return state_->loaded().info; }
std::vector<StepRecord> Engine::recorder() const { return state_->core().recorder().snapshot(); }
MemoryPlan Engine::memory_plan() const { return state_->loaded().plan; }

std::vector<int32_t> Engine::tokenize(const std::string& text, bool parse_special) const {
    return state_->preparer().tokenize(text, parse_special);
}

std::string Engine::detokenize(const std::vector<int32_t>& tokens) const { return state_->preparer().detokenize(tokens); }

std::string Engine::render(const boost::json::array& messages) const { return state_->preparer().render(messages); }

std::vector<int32_t> Engine::tokenize_messages(const boost::json::array& messages) const {
    return state_->preparer().tokenize_messages(messages);
}

boost::asio::any_io_executor Engine::get_executor() const { return state_->executor(); }

}  // namespace takt
