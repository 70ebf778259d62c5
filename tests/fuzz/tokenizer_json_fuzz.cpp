// Any bytes as tokenizer.json: refused with a message, or a tokenizer that encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/tokenizer.h"
#include "model/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    (void)takt::parse_tokenizer_config(text);
    auto spec = takt::parse_tokenizer_json(text);
    if (!spec) return 0;
    const auto tokenizer = takt::make_tokenizer(spec.value());
    if (!tokenizer) return 0;
    const auto ids = tokenizer.value().encode("ab <s> \xC3\xA9\xFF 12", {.parse_special = true});
    (void)tokenizer.value().decode(ids, true);
    return 0;
}
