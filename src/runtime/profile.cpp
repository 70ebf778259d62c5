// takt::profile: loads a model as the engine would and times steps on it. See include/takt/simulate.h.
#include <takt/error.h>
#include <takt/simulate.h>

#include "runtime/clock.h"
#include "runtime/engine_setup.h"
#include "runtime/step_timer.h"

namespace takt {

std::string profile(const Config& config) {
    const RealClock clock;
    const Logger log(config.log);
    const std::unique_ptr<LoadedModel> loaded = load_everything(config, clock, log);
    Result<std::unique_ptr<ForwardRunner>> runner = ForwardRunner::create(*loaded->device, *loaded->model, loaded->core_options.runner);
    if (!runner) throw load_error(errc::internal, runner.error());
    StepTimer timer(*runner.value(), *loaded->tokenizer);
    return profile_text(timer, loaded->core_options.runner);
}

}  // namespace takt
