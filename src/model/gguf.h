// GgufFile: the index of a GGUF file. Everything in it is checked before use: counts, lengths, offsets, alignment, types, shapes;
// messages name file, item, found and expected. Values and tensors are views into the mapping. Knows no architecture.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/status.h"
#include "kernels/tensor.h"
#include "model/mapped_file.h"

namespace takt {

enum class GgufType : uint32_t {
    u8 = 0, i8 = 1, u16 = 2, i16 = 3, u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9, u64 = 10, i64 = 11, f64 = 12,
};

/// An array's elements, unaligned in the file. Strings are length-framed: walk them with GgufFile::strings.
struct GgufArray {
    GgufType type = GgufType::u8;
    uint64_t count = 0;
    std::span<const uint8_t> data;
};

using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

struct GgufTensor {
    std::string_view name;
    HostTensor tensor;                  ///< rows = product of all dimensions but the first
    std::vector<int64_t> shape;         ///< as in the file: fastest dimension first
};

class GgufFile {
public:
    /// `bytes` must outlive the index. `path` is for messages only. Pure: also the fuzzer's entry.
    static Result<GgufFile> parse(std::span<const uint8_t> bytes, const std::string& path);

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
    [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return tensors_; }
    /// All keys and values as they stand in the file, and of them the bytes of one number's or flag's value (empty: no such key).
    [[nodiscard]] std::span<const uint8_t> key_section() const { return key_section_; }
    [[nodiscard]] std::span<const uint8_t> number_bytes(std::string_view key) const;

    // Typed look-ups: empty where the key is absent; an Error where it has another type or is out of range.
    [[nodiscard]] Result<std::optional<int64_t>> integer(std::string_view key, int64_t min, int64_t max) const;
    [[nodiscard]] Result<std::optional<double>> number(std::string_view key) const;
    [[nodiscard]] Result<std::optional<std::string_view>> text(std::string_view key) const;
    [[nodiscard]] Result<std::optional<bool>> flag(std::string_view key) const;
    [[nodiscard]] Result<std::optional<std::vector<std::string>>> texts(std::string_view key) const;
    [[nodiscard]] Result<std::optional<std::vector<float>>> floats(std::string_view key) const;
    [[nodiscard]] Result<std::optional<std::vector<int64_t>>> integers(std::string_view key) const;

private:
    friend class GgufParser;
    [[nodiscard]] Error wrong_type(std::string_view key, const char* expected) const;
    [[nodiscard]] const GgufValue* find(std::string_view key) const;

    std::string path_;
    std::span<const uint8_t> key_section_;
    std::map<std::string_view, GgufValue> metadata_;
    std::map<std::string_view, std::span<const uint8_t>> scalars_;
    std::vector<GgufTensor> tensors_;
};

const char* gguf_type_name(GgufType type);
/// The number of a tensor's type in the file. Of types that GGUF files hold alone.
uint32_t gguf_tensor_type(DType type);

}  // namespace takt
