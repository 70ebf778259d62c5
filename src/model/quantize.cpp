// Writing of quantised GGUF copies; see quantize.h.
#include "model/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cpu/pack.h"
#include "model/block_encoder.h"
#include "model/gguf_files.h"

namespace takt {
namespace {

struct Format {
    const char* name;
    DType type;
    DType table;           // of embedding and head
    uint32_t file_type;    // general.file_type
};

constexpr Format kFormats[] = {
    {"q8_0", DType::q8_0, DType::q8_0, 7},  {"q4_0", DType::q4_0, DType::q8_0, 2},  {"q4_1", DType::q4_1, DType::q8_0, 3},
    {"q4_k", DType::q4_k, DType::q6_k, 15}, {"q6_k", DType::q6_k, DType::q6_k, 18},
};

const Format& format_of(DType type) {
    return *std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& f) { return f.type == type; });
}

/// What a tensor becomes: matrices of whole blocks the wanted type or its stand-in, all else stays.
DType target_of(const GgufTensor& t, const Format& format) {
    if (t.shape.size() < 2 || t.tensor.rows == 1) return t.tensor.type;
    const bool is_table = t.name == "token_embd.weight" || t.name == "output.weight";
    DType wanted = is_table ? format.table : format.type;
    const auto fits = [&](DType type) { return t.tensor.cols % static_cast<int64_t>(dtype_info(type).block_elements) == 0; };
    if (!fits(wanted)) wanted = wanted == DType::q4_k ? DType::q4_1 : DType::q8_0;
    return fits(wanted) ? wanted : t.tensor.type;
}

/// A file that is removed unless it is finished.
class OutputFile {
public:
    explicit OutputFile(std::string path)
        : path_(std::move(path)), partial_(path_ + ".partial"), file_(std::fopen(partial_.c_str(), "wb")) {}
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;
    ~OutputFile() {
        if (file_ == nullptr) return;
        std::fclose(file_);
        std::remove(partial_.c_str());
    }

    void write(const void* data, size_t bytes) {
        is_good_ = is_good_ && file_ != nullptr && std::fwrite(data, 1, bytes, file_) == bytes;
        at_ += bytes;
    }
    template <class T>
    void number(T value) {
        write(&value, sizeof value);
    }
    void text(std::string_view value) {
        number<uint64_t>(value.size());
        write(value.data(), value.size());
    }
    void align(uint64_t to) {
        static constexpr uint8_t kZeros[64] = {};
        while (at_ % to != 0) write(kZeros, std::min<size_t>(sizeof kZeros, static_cast<size_t>(to - at_ % to)));
    }
    [[nodiscard]] bool is_good() const { return is_good_ && file_ != nullptr; }
    bool finish() {
        if (file_ == nullptr) return false;
        is_good_ = std::fclose(file_) == 0 && is_good_;
        file_ = nullptr;
        is_good_ = is_good_ && std::rename(partial_.c_str(), path_.c_str()) == 0;
        if (!is_good_) std::remove(partial_.c_str());
        return is_good_;
    }

private:
    std::string path_, partial_;
    std::FILE* file_;
    uint64_t at_ = 0;
    bool is_good_ = true;
};

/// What rounding did to one row.
struct RowError {
    double errors = 0, squares = 0, largest = 0;
};

RowError encode_row(const HostTensor& tensor, int64_t row, DType to, uint8_t* out) {
    const auto cols = static_cast<size_t>(tensor.cols);
    std::vector<float> weights(cols), rounded(cols);
    cpu::row_to_float(tensor, row, weights.data());
    encode_blocks(to, weights.data(), tensor.cols, out);
    cpu::row_to_float(HostTensor{out, to, 1, tensor.cols}, 0, rounded.data());
    RowError result;
    for (size_t c = 0; c < cols; ++c) {
        const double e = static_cast<double>(rounded[c]) - static_cast<double>(weights[c]);
        result.errors += e * e;
        result.squares += static_cast<double>(weights[c]) * static_cast<double>(weights[c]);
        result.largest = std::max(result.largest, std::abs(e));
    }
    return result;
}

constexpr size_t kBytesAtOnce = size_t{4} << 20;   // encoded bytes held before they are written

/// Encodes rows on every core, a few megabytes at a time; the error is against the weights as read.
QuantizedTensor write_tensor(const GgufTensor& t, DType to, OutputFile& out) {
    QuantizedTensor result{std::string(t.name), t.tensor.type, to, 0, 0};
    if (to == t.tensor.type) {
        out.write(t.tensor.data, t.tensor.bytes());
        return result;
    }
    const size_t row_bytes = dtype_bytes(to, static_cast<size_t>(t.tensor.cols));
    const auto at_once = static_cast<int64_t>(std::max<size_t>(kBytesAtOnce / row_bytes, 1));
    const int64_t num_threads = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
    double errors = 0, squares = 0;
    for (int64_t first = 0; first < t.tensor.rows; first += at_once) {
        const int64_t count = std::min(at_once, t.tensor.rows - first);
        std::vector<uint8_t> bytes(static_cast<size_t>(count) * row_bytes);
        std::vector<RowError> rows(static_cast<size_t>(count));
        std::vector<std::jthread> threads;
        for (int64_t thread = 0; thread < std::min(num_threads, count); ++thread) {
            threads.emplace_back([&, thread] {
                for (int64_t r = thread; r < count; r += num_threads) {
                    const auto i = static_cast<size_t>(r);
                    rows[i] = encode_row(t.tensor, first + r, to, bytes.data() + i * row_bytes);
                }
            });
        }
        threads.clear();   // joins
        for (const RowError& row : rows) {
            errors += row.errors;
            squares += row.squares;
            result.largest_error = std::max(result.largest_error, row.largest);
        }
        out.write(bytes.data(), bytes.size());
    }
    result.relative_error = squares > 0 ? std::sqrt(errors / squares) : 0;
    return result;
}

/// The keys as they stand in the file, but for the file's type, and with a split model's keys saying that it is one file now.
std::vector<uint8_t> key_bytes(const GgufFile& file, const Format& format) {
    std::vector<uint8_t> bytes(file.key_section().begin(), file.key_section().end());
    const auto set = [&](const char* key, uint64_t value) {
        const std::span<const uint8_t> at = file.number_bytes(key);
        if (!at.empty()) std::memcpy(bytes.data() + (at.data() - file.key_section().data()), &value, at.size());   // little-endian
    };
    set("general.file_type", format.file_type);
    set("split.count", 0);
    return bytes;
}

struct Planned {
    const GgufTensor* tensor;
    DType to;
};

void write_head(const GgufFile& keys, const Format& format, const std::vector<Planned>& plan, uint64_t alignment, OutputFile& out) {
    out.write("GGUF", 4);
    out.number<uint32_t>(3);
    out.number<uint64_t>(plan.size());
    out.number<uint64_t>(keys.metadata().size());
    const std::vector<uint8_t> bytes = key_bytes(keys, format);
    out.write(bytes.data(), bytes.size());
    uint64_t offset = 0;
    for (const auto& [tensor, to] : plan) {
        out.text(tensor->name);
        out.number(static_cast<uint32_t>(tensor->shape.size()));
        for (const int64_t size : tensor->shape) out.number(static_cast<uint64_t>(size));
        out.number(gguf_tensor_type(to));
        out.number(offset);
        const uint64_t size = dtype_bytes(to, static_cast<size_t>(tensor->tensor.cols)) * static_cast<uint64_t>(tensor->tensor.rows);
        offset += (size + alignment - 1) / alignment * alignment;
    }
    out.align(alignment);
}

}  // namespace

Result<DType> quantize_format(const std::string& name) {
    std::string known;
    for (const Format& f : kFormats) {
        if (name == f.name) return f.type;
        known += std::string(known.empty() ? "" : ", ") + f.name;
    }
    return Error{"format \"" + name + "\" is not available in this version (" + known + ", w8, w4g128, w3g128 are)"};
}

Result<QuantizeTotals> quantize_gguf(const std::string& in, const std::string& out_path, DType type,
                                     const std::function<void(const QuantizedTensor&)>& on_tensor) {
    const Result<GgufFiles> opened = GgufFiles::open(in);
    if (!opened) return Error{opened.error()};
    const GgufFile& keys = opened.value().first();
    const Format& format = format_of(type);
    const auto alignment = keys.integer("general.alignment", 1, 1 << 20);
    if (!alignment) return Error{alignment.error()};
    std::error_code absent;
    for (const GgufFile& file : opened.value().files()) {
        if (!std::filesystem::equivalent(file.path(), out_path, absent)) continue;
        return Error{out_path + ": the file that is read; another path expected"};
    }
    std::vector<Planned> plan;
    QuantizeTotals totals;
    for (const GgufFile& file : opened.value().files()) {
        for (const GgufTensor& t : file.tensors()) {
            plan.push_back({&t, target_of(t, format)});
            totals.bytes_in += t.tensor.bytes();
            totals.bytes_out += dtype_bytes(plan.back().to, static_cast<size_t>(t.tensor.cols)) * static_cast<uint64_t>(t.tensor.rows);
        }
    }
    OutputFile out(out_path);
    const auto align = static_cast<uint64_t>(alignment.value().value_or(32));
    write_head(keys, format, plan, align, out);
    for (const auto& [tensor, to] : plan) {
        if (!out.is_good()) break;
        const QuantizedTensor done = write_tensor(*tensor, to, out);
        out.align(align);
        if (on_tensor) on_tensor(done);
    }
    if (!out.finish()) return Error{out_path + ": cannot be written"};
    return totals;
}

}  // namespace takt
