// Parsing of safetensors headers; see safetensors.h. The reader trusts nothing: every number is compared with what is there.
#include "model/safetensors.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <optional>

namespace takt {
namespace {

namespace json = boost::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;   // the reference reader's own bound
constexpr int64_t kMaxElements = int64_t{1} << 46;
constexpr size_t kMaxDims = 8;

struct FileType {
    const char* name;
    std::optional<DType> type;   // empty: known to the format, not to takt
};

constexpr FileType kFileTypes[] = {
    {"F32", DType::f32},     {"F16", DType::f16},     {"BF16", DType::bf16},       {"F64", std::nullopt},
    {"I64", DType::i32},     {"I32", DType::i32},     {"I16", std::nullopt},       {"I8", DType::i8},
    {"U64", std::nullopt},   {"U32", std::nullopt},   {"U16", std::nullopt},       {"U8", std::nullopt},
    {"BOOL", std::nullopt},  {"F8_E4M3", std::nullopt}, {"F8_E5M2", std::nullopt}, {"F8_E8M0", std::nullopt},
};

std::optional<uint64_t> whole_number(const json::value& v) {
    if (v.is_uint64()) return v.get_uint64();
    if (v.is_int64() && v.get_int64() >= 0) return static_cast<uint64_t>(v.get_int64());
    return std::nullopt;
}

/// One entry of the header; the first thing that is wrong ends it.
class EntryReader {
public:
    EntryReader(std::string_view name, const json::value& entry) : entry_(entry), what_("tensor \"" + std::string(name) + "\"") {
        out.name = name;
    }

    bool run(std::span<const uint8_t> data) { return read_type() && read_shape() && read_offsets(data); }

    SafetensorsTensor out;
    uint64_t begin = 0, end = 0;
    std::string error;

private:
    bool fail(const std::string& message) {
        error = what_ + ": " + message;
        return false;
    }
    const json::value* field(const char* key) const {
        return entry_.is_object() ? entry_.get_object().if_contains(key) : nullptr;
    }

    bool read_type() {
        const json::value* type = field("dtype");
        if (type == nullptr || !type->is_string()) return fail("no \"dtype\"");
        const std::string name(type->get_string());
        for (const FileType& known : kFileTypes) {
            if (name != known.name) continue;
            if (!known.type) return fail("type " + name + " is not available in this version (F32, F16, BF16, I64, I32 and I8 are)");
            out.tensor.type = *known.type;
            words_per_element_ = name == "I64" ? 2 : 1;
            return true;
        }
        return fail("unknown type \"" + name + "\"");
    }

    bool read_shape() {
        const json::value* shape = field("shape");
        if (shape == nullptr || !shape->is_array()) return fail("no \"shape\"");
        const json::array& sizes = shape->get_array();
        if (sizes.empty() || sizes.size() > kMaxDims) {
            return fail(std::to_string(sizes.size()) + " dimensions found, 1 to " + std::to_string(kMaxDims) + " expected");
        }
        int64_t elements = 1;
        for (const json::value& v : sizes) {
            const std::optional<uint64_t> size = whole_number(v);
            if (!size || *size == 0 || *size > static_cast<uint64_t>(kMaxElements / elements)) {
                return fail("dimension " + std::to_string(out.shape.size()) + " of " + json::serialize(v) + " is out of range");
            }
            elements *= static_cast<int64_t>(*size);
            out.shape.push_back(static_cast<int64_t>(*size));
        }
        out.tensor.rows = elements / out.shape.back();
        out.tensor.cols = out.shape.back() * words_per_element_;
        return true;
    }

    bool read_offsets(std::span<const uint8_t> data) {
        const json::value* offsets = field("data_offsets");
        if (offsets == nullptr || !offsets->is_array() || offsets->get_array().size() != 2) {
            return fail("no \"data_offsets\" of two numbers");
        }
        const std::optional<uint64_t> first = whole_number(offsets->get_array()[0]);
        const std::optional<uint64_t> last = whole_number(offsets->get_array()[1]);
        if (!first || !last) return fail("data_offsets are not whole numbers");
        begin = *first;
        end = *last;
        if (end < begin || end > data.size()) {
            return fail("data bytes " + std::to_string(begin) + " to " + std::to_string(end) + " expected, the file has " +
                        std::to_string(data.size()));
        }
        if (end - begin != out.tensor.bytes()) {
            return fail(std::to_string(end - begin) + " bytes found, " + std::to_string(out.tensor.bytes()) + " expected of its shape");
        }
        out.tensor.data = data.data() + begin;
        return true;
    }

    const json::value& entry_;
    std::string what_;
    int64_t words_per_element_ = 1;   // int64, which no weight is, counts as pairs of int32
};

/// The header's JSON, or the reason why there is none.
Result<json::value> read_header(std::span<const uint8_t> bytes, uint64_t* header_bytes, json::storage_ptr storage) {
    if (bytes.size() < 8) return Error{"not a safetensors file: it has " + std::to_string(bytes.size()) + " bytes"};
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    if (length > kMaxHeaderBytes || length > bytes.size() - 8) {
        return Error{"not a safetensors file: a header of " + std::to_string(length) + " bytes, the file has " +
                     std::to_string(bytes.size())};
    }
    *header_bytes = length;
    json::error_code failure;
    const json::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<size_t>(length));
    json::value header = json::parse(text, failure, std::move(storage));
    if (failure) return Error{"the header is not valid JSON: " + failure.message()};
    if (!header.is_object()) return Error{"the header is not a JSON object"};
    return header;
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const uint8_t> bytes, const std::string& path) {
    SafetensorsFile file;
    file.path_ = path;
    json::monotonic_resource memory;
    uint64_t header_bytes = 0;
    Result<json::value> header = read_header(bytes, &header_bytes, &memory);
    if (!header) return Error{path + ": " + header.error()};
    const std::span<const uint8_t> data = bytes.subspan(8 + static_cast<size_t>(header_bytes));
    struct Placed {
        uint64_t begin, end;
        SafetensorsTensor tensor;
    };
    std::vector<Placed> placed;
    for (const auto& [name, entry] : header.value().get_object()) {
        if (name == "__metadata__") continue;   // free text
        EntryReader reader({name.data(), name.size()}, entry);
        if (!reader.run(data)) return Error{path + ": " + reader.error};
        placed.push_back({reader.begin, reader.end, std::move(reader.out)});
    }
    std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
    uint64_t at = 0;
    for (Placed& p : placed) {
        if (p.begin != at) {
            return Error{path + ": tensor \"" + p.tensor.name + "\" begins at data byte " + std::to_string(p.begin) + ", " +
                         std::to_string(at) + " expected: tensors must lie without holes or overlaps"};
        }
        at = p.end;
        file.tensors_.push_back(std::move(p.tensor));
    }
    if (at != data.size()) {
        return Error{path + ": " + std::to_string(data.size()) + " bytes of data found, " + std::to_string(at) + " expected"};
    }
    return file;
}

}  // namespace takt
