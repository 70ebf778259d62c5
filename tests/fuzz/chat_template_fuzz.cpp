// Any bytes as a chat template: parsing and rendering must end, within their bounds and without a fault.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view source(reinterpret_cast<const char*>(data), size);
    const auto parsed = takt::ChatTemplate::parse(source);
    if (!parsed) return 0;
    takt::ChatInput input;
    boost::json::object message{{"role", "user"}, {"content", " <|x|> \xC3\xA9 text "}, {"n", 3}};
    input.messages = boost::json::array{message, message};
    (void)parsed.value().render(input);
    return 0;
}
