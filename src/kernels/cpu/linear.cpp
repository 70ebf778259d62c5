// Re-packing of file tensors into the CPU layout, at load time; see packed_format.h for the records.
#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/packed_format.h"

namespace takt::cpu {
namespace {

// A row of read-ahead after the last group.
constexpr size_t kSlackBytes = 64;   // a prefetch beyond it never faults

/// Bytes of the pair sums of a matrix, 0 where the device multiplies its type without.
size_t pair_sums_bytes(const CpuDevice& device, DType type, int64_t cols, int64_t num_groups) {
    if (device.arithmetic() != CpuArithmetic::int16 || kernel_table(device.isa()).pair_sums == nullptr || !is_pairable(type)) return 0;
    return static_cast<size_t>(num_groups * num_blocks(cols) * kGroupRows) * sizeof(int16_t);
}

/// The common types have a packing of their own here: it is what a load spends its time on. Others go through pack.h.
bool has_fast_packing(DType t) { return is_plain(t) || t == DType::q4_0 || t == DType::q4_1 || t == DType::q8_0; }

/// The 32 quants of a file block, unsigned as the packed form stores them.
void file_quants(DType type, const uint8_t* block, uint8_t* out) {
    if (type == DType::q8_0) {
        for (int c = 0; c < kBlockColumns; ++c) out[c] = static_cast<uint8_t>(block[2 + c] ^ 0x80);   // + 128
        return;
    }
    const uint8_t* nibbles = block + (type == DType::q4_1 ? 4 : 2);
    for (int c = 0; c < 16; ++c) {
        out[c] = nibbles[c] & 15;
        out[c + 16] = nibbles[c] >> 4;
    }
}

/// One row's 32 quants into its lane of a strip's planes, four columns (a 4-byte word) at a time.
void pack_quants(uint8_t* planes, bool nibbles, int lane, const uint8_t* quants) {
    for (int v = 0; v < (nibbles ? 4 : 8); ++v) {
        uint32_t word = 0;
        std::memcpy(&word, quants + v * (nibbles ? 8 : 4), 4);
        if (nibbles) {
            uint32_t high = 0;
            std::memcpy(&high, quants + v * 8 + 4, 4);
            word |= high << 4;
        }
        std::memcpy(planes + v * 64 + lane * 4, &word, 4);
    }
}

void pack_quantised_group(const HostTensor& t, int64_t first_row, uint8_t* out) {
    const PackedFormat f = packed_format(t.type);
    const size_t file_block = dtype_info(t.type).block_bytes;
    const int64_t blocks = num_blocks(t.cols);
    for (int64_t r = 0; r < kGroupRows && first_row + r < t.rows; ++r) {
        const uint8_t* row = t.row(first_row + r);
        const int strip = static_cast<int>(r) / kStripRows;
        const int lane = static_cast<int>(r) % kStripRows;
        for (int64_t b = 0; b < blocks; ++b) {
            const uint8_t* block = row + static_cast<size_t>(b) * file_block;
            uint8_t* record = out + b * f.record_bytes();
            std::memcpy(record + r * 2, block, 2);                               // d
            if (f.has_min) std::memcpy(record + 64 + r * 2, block + 2, 2);       // m
            uint8_t* planes = record + f.scale_bytes + strip * (f.nibbles ? 256 : 512);
            uint8_t quants[kBlockColumns];
            file_quants(t.type, block, quants);
            pack_quants(planes, f.nibbles, lane, quants);
        }
    }
}

void pack_plain_group(const HostTensor& t, int64_t first_row, uint8_t* out) {
    const size_t bytes = dtype_bytes(t.type, 1);
    for (int64_t r = 0; r < kGroupRows && first_row + r < t.rows; ++r) {
        const uint8_t* row = t.row(first_row + r);
        for (int64_t c = 0; c < t.cols; ++c) {
            std::memcpy(out + (static_cast<size_t>(c) * kGroupRows + static_cast<size_t>(r)) * bytes, row + static_cast<size_t>(c) * bytes,
                        bytes);
        }
    }
}

Result<PackedMatrix> pack(CpuDevice& device, const HostTensor& t) {
    if (!is_packable(t.type)) return Error{std::string("type ") + dtype_info(t.type).name + " is not available in this version"};
    if (t.rows <= 0 || t.cols <= 0) return Error{"an empty matrix"};
    const auto unit = static_cast<int64_t>(dtype_info(t.type).block_elements);
    if (t.cols % unit != 0) {
        return Error{std::string(dtype_info(t.type).name) + " needs columns in whole blocks of " + std::to_string(unit) + ", not " +
                     std::to_string(t.cols)};
    }
    PackedMatrix m;
    m.type = t.type;
    m.rows = t.rows;
    m.cols = t.cols;
    m.num_groups = (t.rows + kGroupRows - 1) / kGroupRows;
    m.group_bytes = group_bytes(t.type, t.cols);
    const size_t weight_bytes = m.group_bytes * static_cast<size_t>(m.num_groups) + kSlackBytes;
    const size_t sums_bytes = pair_sums_bytes(device, t.type, t.cols, m.num_groups);
    Result<Buffer> data = device.alloc(weight_bytes + sums_bytes, MemoryKind::device);
    if (!data) return Error{data.error()};
    m.data = std::move(data).value();
    auto* out = m.data.as<uint8_t>();
    std::memset(out, 0, m.data.bytes());
    for (int64_t g = 0; g < m.num_groups; ++g) {
        uint8_t* group = out + static_cast<size_t>(g) * m.group_bytes;
        if (!has_fast_packing(t.type)) {
            const auto rows = static_cast<int>(std::min<int64_t>(kGroupRows, t.rows - g * kGroupRows));
            const StripSource low{&t, g * kGroupRows, std::min(rows, kStripRows)};
            const StripSource high{&t, g * kGroupRows + kStripRows, std::max(rows - kStripRows, 0)};
            pack_group(low, high, group);
        } else if (is_plain(t.type)) {
            pack_plain_group(t, g * kGroupRows, group);
        } else {
            pack_quantised_group(t, g * kGroupRows, group);
        }
    }
    if (sums_bytes > 0) {
        auto* sums = reinterpret_cast<int16_t*>(out + weight_bytes);
        for (int64_t g = 0; g < m.num_groups; ++g) {
            const PackedGroup group = m.group(g);
            kernel_table(device.isa()).pair_sums(group, sums + g * group.num_blocks * kGroupRows);
        }
        m.pair_sums = sums;
    }
    return m;
}

float plain_value(DType type, const uint8_t* p) {
    uint16_t half = 0;
    float value = 0;
    if (type == DType::f32) {
        std::memcpy(&value, p, 4);
        return value;
    }
    std::memcpy(&half, p, 2);
    return type == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
}

}  // namespace

PackedGroup PackedMatrix::group(int64_t g) const {
    PackedGroup group{type, data.as<uint8_t>() + static_cast<size_t>(g) * group_bytes, num_blocks(cols)};
    if (pair_sums != nullptr) group.pair_sums = pair_sums + g * group.num_blocks * kGroupRows;
    return group;
}

void PackedMatrix::read_row(int64_t r, float* out) const {
    const uint8_t* group = data.as<uint8_t>() + static_cast<size_t>(r / kGroupRows) * group_bytes;
    const int64_t in_group = r % kGroupRows;
    if (!has_fast_packing(type)) return unpack_row(type, group, cols, static_cast<int>(in_group), out);
    if (is_plain(type)) {
        const size_t bytes = dtype_bytes(type, 1);
        for (int64_t c = 0; c < cols; ++c) out[c] = plain_value(type, group + static_cast<size_t>(c * kGroupRows + in_group) * bytes);
        return;
    }
    const PackedFormat f = packed_format(type);
    const auto lane = static_cast<int>(in_group) % kStripRows;
    for (int64_t c = 0; c < cols; ++c) {
        const uint8_t* record = group + c / kBlockColumns * f.record_bytes();
        const auto column = static_cast<int>(c % kBlockColumns);
        const uint8_t* planes = record + f.scale_bytes + in_group / kStripRows * (f.nibbles ? 256 : 512);
        const uint8_t raw = f.nibbles ? planes[column / 8 * 64 + lane * 4 + column % 4] : planes[column / 4 * 64 + lane * 4 + column % 4];
        const int value = f.nibbles ? (column % 8 < 4 ? raw & 15 : raw >> 4) : raw;
        const float d = plain_value(DType::f16, record + in_group * 2);
        const float m = f.has_min ? plain_value(DType::f16, record + 64 + in_group * 2) : 0.0f;
        out[c] = d * static_cast<float>(value - f.offset) + m;
    }
}

int64_t CpuLinear::out_features() const {
    int64_t total = 0;
    for (const PackedMatrix& part : parts_) total += part.rows;
    return total;
}

size_t CpuLinear::bytes() const {
    size_t total = 0;
    for (const PackedMatrix& part : parts_) total += part.data.bytes();
    return total;
}

RowUse CpuLinear::row_use(const KernelTable& kernels) const {
    RowUse use;
    for (const PackedMatrix& part : parts_) use.add(part.type, kernels);
    return use;
}

size_t cpu_linear_bytes(const CpuDevice& device, std::span<const HostTensor> parts) {
    size_t total = 0;
    for (const HostTensor& t : parts) {
        const int64_t num_groups = (t.rows + kGroupRows - 1) / kGroupRows;
        total += group_bytes(t.type, t.cols) * static_cast<size_t>(num_groups) + kSlackBytes;
        total += pair_sums_bytes(device, t.type, t.cols, num_groups);
    }
    return total;
}

Result<std::unique_ptr<Linear>> make_cpu_linear(CpuDevice& device, std::span<const HostTensor> parts, LinearKind kind) {
    if (parts.empty() || (kind == LinearKind::gate_up && (parts.size() != 2 || parts[0].rows != parts[1].rows))) {
        return Error{"a linear layer of wrong parts"};
    }
    std::vector<PackedMatrix> packed;
    for (const HostTensor& part : parts) {
        if (part.cols != parts[0].cols) return Error{"parts of a linear layer differ in columns"};
        Result<PackedMatrix> matrix = pack(device, part);
        if (!matrix) return Error{matrix.error()};
        packed.push_back(std::move(matrix).value());
    }
    return std::unique_ptr<Linear>(std::make_unique<CpuLinear>(std::move(packed)));
}

Result<std::unique_ptr<Embedding>> make_cpu_embedding(CpuDevice& device, const HostTensor& table, const Linear* tied_head) {
    if (tied_head != nullptr) {
        const PackedMatrix& head = static_cast<const CpuLinear*>(tied_head)->parts().front();
        if (head.rows == table.rows && head.cols == table.cols && head.type == table.type) {
            return std::unique_ptr<Embedding>(std::make_unique<CpuEmbedding>(&head));
        }
    }
    Result<PackedMatrix> own = pack(device, table);
    if (!own) return Error{own.error()};
    return std::unique_ptr<Embedding>(std::make_unique<CpuEmbedding>(std::move(own).value()));
}

}  // namespace takt::cpu
