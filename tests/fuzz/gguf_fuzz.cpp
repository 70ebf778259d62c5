// Any bytes as a GGUF file: refused with a message, or an index whose values, tensors and tokenizer stay within the bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "model/gguf.h"
#include "model/model_file.h"
#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto parsed = takt::GgufFile::parse(std::span(data, size), "fuzz.gguf");
    if (!parsed) {
        if (parsed.error().rfind("fuzz.gguf: ", 0) != 0) std::abort();   // every message names the file
        return 0;
    }
    const takt::GgufFile& file = parsed.value();
    for (const auto& [key, value] : file.metadata()) {
        (void)file.texts(key);
        (void)file.integers(key);
        (void)file.floats(key);
        (void)file.number(key);
    }
    for (const takt::GgufTensor& tensor : file.tensors()) {
        const auto* at = static_cast<const std::uint8_t*>(tensor.tensor.data);
        if (at < data || at > data + size || tensor.tensor.bytes() > static_cast<std::size_t>(data + size - at)) std::abort();
    }
    const auto config = takt::read_model_config(file);
    if (config) (void)takt::bind_tensors(file, config.value());
    const auto spec = takt::read_tokenizer_spec(file);
    if (spec) (void)takt::make_tokenizer(spec.value());
    return 0;
}
