// GGUF parsing; see gguf.h. The reader trusts nothing: every length is compared with what is left before it is used.
#include "model/gguf.h"

#include <cmath>
#include <cstring>
#include <set>

#include "kernels/assert.h"

namespace takt {
namespace {

constexpr uint64_t kMaxCount = 1u << 24;   // key-values or tensors: far beyond any real file
constexpr size_t kMaxDims = 4;
constexpr int64_t kMaxElements = int64_t{1} << 46;

size_t scalar_bytes(GgufType type) {
    switch (type) {
        case GgufType::u8: case GgufType::i8: case GgufType::boolean: return 1;
        case GgufType::u16: case GgufType::i16: return 2;
        case GgufType::u32: case GgufType::i32: case GgufType::f32: return 4;
        case GgufType::u64: case GgufType::i64: case GgufType::f64: return 8;
        default: return 0;
    }
}

template <class T>
T load(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
}

GgufValue scalar(GgufType type, const uint8_t* p) {
    switch (type) {
        case GgufType::u8: return uint64_t{*p};
        case GgufType::i8: return int64_t{load<int8_t>(p)};
        case GgufType::u16: return uint64_t{load<uint16_t>(p)};
        case GgufType::i16: return int64_t{load<int16_t>(p)};
        case GgufType::u32: return uint64_t{load<uint32_t>(p)};
        case GgufType::i32: return int64_t{load<int32_t>(p)};
        case GgufType::f32: return double{load<float>(p)};
        case GgufType::boolean: return *p != 0;
        case GgufType::u64: return load<uint64_t>(p);
        case GgufType::i64: return load<int64_t>(p);
        default: return load<double>(p);
    }
}

struct FileType {
    uint32_t id;
    const char* name;
    std::optional<DType> type;   // empty: known to the format, not to takt
};

constexpr FileType kFileTypes[] = {
    {0, "F32", DType::f32},      {1, "F16", DType::f16},      {2, "Q4_0", DType::q4_0},   {3, "Q4_1", DType::q4_1},
    {6, "Q5_0", DType::q5_0},    {7, "Q5_1", DType::q5_1},    {8, "Q8_0", DType::q8_0},   {9, "Q8_1", std::nullopt},
    {10, "Q2_K", DType::q2_k},   {11, "Q3_K", DType::q3_k},   {12, "Q4_K", DType::q4_k},  {13, "Q5_K", DType::q5_k},
    {14, "Q6_K", DType::q6_k},   {15, "Q8_K", std::nullopt},  {16, "IQ2_XXS", std::nullopt}, {17, "IQ2_XS", std::nullopt},
    {18, "IQ3_XXS", std::nullopt}, {19, "IQ1_S", std::nullopt}, {20, "IQ4_NL", std::nullopt}, {21, "IQ3_S", std::nullopt},
    {22, "IQ2_S", std::nullopt}, {23, "IQ4_XS", std::nullopt}, {24, "I8", std::nullopt},  {25, "I16", std::nullopt},
    {26, "I32", std::nullopt},   {27, "I64", std::nullopt},   {28, "F64", std::nullopt},  {29, "IQ1_M", std::nullopt},
    {30, "BF16", DType::bf16},   {34, "TQ1_0", std::nullopt}, {35, "TQ2_0", std::nullopt}, {39, "MXFP4", std::nullopt},
    {40, "NVFP4", std::nullopt},  {41, "Q1_0", std::nullopt},
};

std::string readable_types() {
    std::string names;
    for (const FileType& known : kFileTypes) {
        if (known.type) names += std::string(names.empty() ? "" : ", ") + known.name;
    }
    return names;
}

}  // namespace

const char* gguf_type_name(GgufType type) {
    static constexpr const char* kNames[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
    const auto index = static_cast<size_t>(type);
    return index < std::size(kNames) ? kNames[index] : "unknown";
}

uint32_t gguf_tensor_type(DType type) {
    for (const FileType& known : kFileTypes) {
        if (known.type == type) return known.id;
    }
    TAKT_ASSERT(false);
    return 0;
}

/// Walks the file front to back; the first thing that is wrong ends it.
class GgufParser {
public:
    GgufParser(std::span<const uint8_t> bytes, GgufFile& file) : bytes_(bytes), file_(file) {}

    std::optional<Error> run() {
        if (!header()) return error();
        const size_t keys_begin = at_;
        for (uint64_t i = 0; i < num_values_; ++i) {
            if (!key_value()) return error();
        }
        file_.key_section_ = bytes_.subspan(keys_begin, at_ - keys_begin);
        if (!alignment()) return error();
        std::vector<uint64_t> offsets;
        for (uint64_t i = 0; i < num_tensors_; ++i) {
            if (!tensor_info(offsets)) return error();
        }
        if (!tensor_data(offsets)) return error();
        return std::nullopt;
    }

private:
    Error error() const { return Error{file_.path_ + ": " + message_}; }
    bool fail(std::string message) {
        message_ = std::move(message);
        return false;
    }
    [[nodiscard]] size_t left() const { return bytes_.size() - at_; }
    bool need(uint64_t count, const std::string& what) {
        if (count <= left()) return true;
        return fail("ends inside " + what + " at byte " + std::to_string(at_) + ": " + std::to_string(count) +
                    " bytes expected, " + std::to_string(left()) + " left");
    }
    template <class T>
    bool read(T& out, const std::string& what) {
        if (!need(sizeof(T), what)) return false;
        out = load<T>(bytes_.data() + at_);
        at_ += sizeof(T);
        return true;
    }
    bool read_text(std::string_view& out, const std::string& what) {
        uint64_t length = 0;
        if (!read(length, what) || !need(length, what)) return false;
        out = {reinterpret_cast<const char*>(bytes_.data() + at_), static_cast<size_t>(length)};
        at_ += static_cast<size_t>(length);
        return true;
    }

    bool header() {
        uint32_t version = 0;
        if (!need(4, "the magic")) return false;
        if (std::memcmp(bytes_.data(), "GGUF", 4) != 0) return fail("not a GGUF file: it does not begin with \"GGUF\"");
        at_ = 4;
        if (!read(version, "the version")) return false;
        if (version != 2 && version != 3) {
            return fail("GGUF version " + std::to_string(version) + " found, 2 or 3 expected");
        }
        if (!read(num_tensors_, "the tensor count") || !read(num_values_, "the key count")) return false;
        // A key-value takes at least 13 bytes, a tensor at least 32: a larger count cannot be true.
        if (num_values_ > kMaxCount || num_values_ > left() / 13) {
            return fail("key count " + std::to_string(num_values_) + " is more than the file can hold");
        }
        if (num_tensors_ > kMaxCount || num_tensors_ > left() / 32) {
            return fail("tensor count " + std::to_string(num_tensors_) + " is more than the file can hold");
        }
        return true;
    }

    bool key_value() {
        std::string_view key;
        uint32_t type = 0;
        if (!read_text(key, "a key")) return false;
        const std::string what = "key \"" + std::string(key) + "\"";
        if (!read(type, what)) return false;
        GgufValue value;
        if (!read_value(static_cast<GgufType>(type), what, value)) return false;
        if (!file_.metadata_.emplace(key, std::move(value)).second) return fail(what + " stands twice");
        const size_t bytes = scalar_bytes(static_cast<GgufType>(type));   // 0 for strings and arrays
        if (bytes > 0) file_.scalars_.emplace(key, bytes_.subspan(at_ - bytes, bytes));
        return true;
    }

    bool read_value(GgufType type, const std::string& what, GgufValue& value) {
        if (type == GgufType::string) {
            std::string_view text;
            if (!read_text(text, what)) return false;
            value = text;
            return true;
        }
        if (type == GgufType::array) return read_array(what, value);
        const size_t bytes = scalar_bytes(type);
        if (bytes == 0) return fail(what + ": unknown value type " + std::to_string(static_cast<uint32_t>(type)));
        if (!need(bytes, what)) return false;
        value = scalar(type, bytes_.data() + at_);
        at_ += bytes;
        return true;
    }

    bool read_array(const std::string& what, GgufValue& value) {
        uint32_t type = 0;
        GgufArray array;
        if (!read(type, what) || !read(array.count, what)) return false;
        array.type = static_cast<GgufType>(type);
        const size_t begin = at_;
        if (array.type == GgufType::string) {
            if (array.count > left() / 8) return fail(what + ": " + std::to_string(array.count) + " strings do not fit the file");
            std::string_view text;
            for (uint64_t i = 0; i < array.count; ++i) {
                if (!read_text(text, what)) return false;
            }
        } else {
            const size_t bytes = scalar_bytes(array.type);
            if (bytes == 0) return fail(what + ": unknown array type " + std::to_string(type));
            if (array.count > left() / bytes) return fail(what + ": " + std::to_string(array.count) + " values do not fit the file");
            at_ += static_cast<size_t>(array.count) * bytes;
        }
        array.data = bytes_.subspan(begin, at_ - begin);
        value = array;
        return true;
    }

    bool alignment() {
        const auto found = file_.integer("general.alignment", 8, 1 << 20);
        if (!found) return fail(found.error().substr(file_.path_.size() + 2));
        alignment_ = static_cast<uint64_t>(found.value().value_or(32));
        if ((alignment_ & (alignment_ - 1)) != 0) {
            return fail("general.alignment " + std::to_string(alignment_) + " is no power of two");
        }
        return true;
    }

    bool tensor_info(std::vector<uint64_t>& offsets) {
        GgufTensor t;
        if (!read_text(t.name, "a tensor's name")) return false;
        const std::string what = "tensor \"" + std::string(t.name) + "\"";
        uint32_t num_dims = 0;
        if (!read(num_dims, what)) return false;
        if (num_dims == 0 || num_dims > kMaxDims) {
            return fail(what + ": " + std::to_string(num_dims) + " dimensions found, 1 to 4 expected");
        }
        int64_t elements = 1;
        for (uint32_t d = 0; d < num_dims; ++d) {
            uint64_t size = 0;
            if (!read(size, what)) return false;
            if (size == 0 || size > static_cast<uint64_t>(kMaxElements / elements)) {
                return fail(what + ": dimension " + std::to_string(d) + " of " + std::to_string(size) + " is out of range");
            }
            elements *= static_cast<int64_t>(size);
            t.shape.push_back(static_cast<int64_t>(size));
        }
        uint32_t type = 0;
        uint64_t offset = 0;
        if (!read(type, what) || !read(offset, what) || !set_type(t, what, type, elements)) return false;
        if (offset % alignment_ != 0) {
            return fail(what + ": offset " + std::to_string(offset) + " is no multiple of " + std::to_string(alignment_));
        }
        offsets.push_back(offset);
        if (!names_.insert(t.name).second) return fail(what + " stands twice");
        file_.tensors_.push_back(std::move(t));
        return true;
    }

    bool set_type(GgufTensor& t, const std::string& what, uint32_t type, int64_t elements) {
        for (const FileType& known : kFileTypes) {
            if (known.id != type) continue;
            if (!known.type) {
                return fail(what + ": type " + known.name + " is not available in this version (" + readable_types() + " are)");
            }
            t.tensor.type = *known.type;
            t.tensor.cols = t.shape[0];
            t.tensor.rows = elements / t.shape[0];
            const uint32_t block = dtype_info(*known.type).block_elements;
            if (t.shape[0] % block != 0) {
                return fail(what + ": rows of " + std::to_string(t.shape[0]) + " elements, a multiple of " +
                            std::to_string(block) + " expected for type " + known.name);
            }
            return true;
        }
        return fail(what + ": unknown type " + std::to_string(type));
    }

    bool tensor_data(const std::vector<uint64_t>& offsets) {
        const uint64_t begin = (at_ + alignment_ - 1) / alignment_ * alignment_;
        for (size_t i = 0; i < offsets.size(); ++i) {
            GgufTensor& t = file_.tensors_[i];
            const uint64_t bytes = t.tensor.bytes();
            const uint64_t available = begin <= bytes_.size() ? bytes_.size() - begin : 0;
            if (offsets[i] > available || bytes > available - offsets[i]) {
                return fail("tensor \"" + std::string(t.name) + "\": bytes " + std::to_string(begin + offsets[i]) + " to " +
                            std::to_string(begin + offsets[i] + bytes) + " expected, the file has " +
                            std::to_string(bytes_.size()));
            }
            t.tensor.data = bytes_.data() + begin + offsets[i];
        }
        return true;
    }

    std::span<const uint8_t> bytes_;
    GgufFile& file_;
    size_t at_ = 0;
    std::set<std::string_view> names_;   // of tensors
    uint64_t num_tensors_ = 0, num_values_ = 0, alignment_ = 32;
    std::string message_;
};

Result<GgufFile> GgufFile::parse(std::span<const uint8_t> bytes, const std::string& path) {
    GgufFile file;
    file.path_ = path;
    if (auto error = GgufParser(bytes, file).run()) return *error;
    return file;
}

std::span<const uint8_t> GgufFile::number_bytes(std::string_view key) const {
    const auto at = scalars_.find(key);
    return at == scalars_.end() ? std::span<const uint8_t>() : at->second;
}

const GgufValue* GgufFile::find(std::string_view key) const {
    const auto at = metadata_.find(key);
    return at == metadata_.end() ? nullptr : &at->second;
}

Error GgufFile::wrong_type(std::string_view key, const char* expected) const {
    static constexpr const char* kKinds[] = {"an unsigned integer", "an integer", "a number", "a bool", "a string", "an array"};
    return Error{path_ + ": key \"" + std::string(key) + "\": " + kKinds[find(key)->index()] + " found, " + expected + " expected"};
}

Result<std::optional<int64_t>> GgufFile::integer(std::string_view key, int64_t min, int64_t max) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::optional<int64_t>();
    int64_t found = 0;
    if (const auto* u = std::get_if<uint64_t>(value)) {
        found = *u > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(*u);
    } else if (const auto* i = std::get_if<int64_t>(value)) {
        found = *i;
    } else {
        return wrong_type(key, "an integer");
    }
    if (found < min || found > max) {
        return Error{path_ + ": key \"" + std::string(key) + "\": " + std::to_string(found) + " found, " + std::to_string(min) +
                     " to " + std::to_string(max) + " expected"};
    }
    return std::optional<int64_t>(found);
}

Result<std::optional<double>> GgufFile::number(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::optional<double>();
    if (const auto* d = std::get_if<double>(value)) {
        if (!std::isfinite(*d)) return Error{path_ + ": key \"" + std::string(key) + "\" is not finite"};
        return std::optional<double>(*d);
    }
    if (const auto* u = std::get_if<uint64_t>(value)) return std::optional<double>(static_cast<double>(*u));
    if (const auto* i = std::get_if<int64_t>(value)) return std::optional<double>(static_cast<double>(*i));
    return wrong_type(key, "a number");
}

Result<std::optional<std::string_view>> GgufFile::text(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::optional<std::string_view>();
    if (const auto* t = std::get_if<std::string_view>(value)) return std::optional<std::string_view>(*t);
    return wrong_type(key, "a string");
}

Result<std::optional<bool>> GgufFile::flag(std::string_view key) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::optional<bool>();
    if (const auto* b = std::get_if<bool>(value)) return std::optional<bool>(*b);
    return wrong_type(key, "a bool");
}

Result<std::optional<std::vector<std::string>>> GgufFile::texts(std::string_view key) const {
    using Out = std::optional<std::vector<std::string>>;
    const GgufValue* value = find(key);
    if (value == nullptr) return Out();
    const auto* array = std::get_if<GgufArray>(value);
    if (array == nullptr || array->type != GgufType::string) return wrong_type(key, "an array of strings");
    std::vector<std::string> out;
    out.reserve(static_cast<size_t>(array->count));
    const uint8_t* p = array->data.data();   // lengths were checked by the parser
    for (uint64_t i = 0; i < array->count; ++i) {
        const auto length = static_cast<size_t>(load<uint64_t>(p));
        out.emplace_back(reinterpret_cast<const char*>(p + 8), length);
        p += 8 + length;
    }
    return Out(std::move(out));
}

Result<std::optional<std::vector<float>>> GgufFile::floats(std::string_view key) const {
    using Out = std::optional<std::vector<float>>;
    const GgufValue* value = find(key);
    if (value == nullptr) return Out();
    const auto* array = std::get_if<GgufArray>(value);
    if (array == nullptr || array->type != GgufType::f32) return wrong_type(key, "an array of f32");
    std::vector<float> out(static_cast<size_t>(array->count));
    if (!out.empty()) std::memcpy(out.data(), array->data.data(), out.size() * sizeof(float));
    return Out(std::move(out));
}

Result<std::optional<std::vector<int64_t>>> GgufFile::integers(std::string_view key) const {
    using Out = std::optional<std::vector<int64_t>>;
    const GgufValue* value = find(key);
    if (value == nullptr) return Out();
    const auto* array = std::get_if<GgufArray>(value);
    if (array == nullptr || array->type == GgufType::string || array->type == GgufType::f32 || array->type == GgufType::f64) {
        return wrong_type(key, "an array of integers");
    }
    std::vector<int64_t> out;
    const size_t step = scalar_bytes(array->type);
    for (uint64_t i = 0; i < array->count; ++i) {
        const GgufValue item = scalar(array->type, array->data.data() + i * step);
        if (const auto* u = std::get_if<uint64_t>(&item)) out.push_back(static_cast<int64_t>(*u));
        if (const auto* s = std::get_if<int64_t>(&item)) out.push_back(*s);
        if (const auto* b = std::get_if<bool>(&item)) out.push_back(*b ? 1 : 0);
    }
    return Out(std::move(out));
}

}  // namespace takt
