// Any bytes as a chat template: parsing and rendering must end, within their bounds and without a fault. A few go through
// ChatTemplate with its own bounds, half a gigabyte among them; the others run on the same machine with a hundredth of each, so that a
// run that ends at a bound is short too.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat_template.h"
#include "model/jinja/json_read.h"
#include "model/jinja/machine.h"
#include "model/jinja/parser.h"

namespace {

using namespace takt;

ChatInput make_input() {
    ChatInput input;
    boost::json::object message{{"role", "user"}, {"content", " <|x|> \xC3\xA9 text "}, {"n", 3}};
    input.messages = boost::json::array{message, message};
    return input;
}

void run_whole(std::string_view source, const ChatInput& input) {
    const auto parsed = ChatTemplate::parse(source);
    if (parsed) (void)parsed.value().render(input);
}

void run_small(std::string_view source, const ChatInput& input) {
    const auto parsed = jinja::parse(source);
    if (!parsed) return;
    jinja::Limits limits;
    limits.max_steps /= 100;
    limits.max_bytes /= 100;
    limits.max_output_bytes /= 100;
    jinja::Machine machine(limits, 0);
    std::vector<std::pair<std::string, jinja::Value>> variables;
    variables.emplace_back("messages", jinja::value_of_json(machine, input.messages));
    variables.emplace_back("add_generation_prompt", jinja::Value::boolean(true));
    const bool done = machine.run(parsed.value(), std::move(variables));
    if (done == machine.failed() || machine.output().size() > limits.max_output_bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const ChatInput input = make_input();
    const std::string_view source(reinterpret_cast<const char*>(data), size);
    // A run to the full bounds takes as long as a hundred others.
    if (std::accumulate(data, data + size, 0u) % 128 == 0) {
        run_whole(source, input);
    } else {
        run_small(source, input);
    }
    return 0;
}
