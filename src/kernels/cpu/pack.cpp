// Both directions of the packed layout. What a load spends its time on is written a word at a time; the rest byte by byte.
#include "kernels/cpu/pack.h"

#include <algorithm>
#include <cstring>

#include "kernels/assert.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/packed_format.h"

namespace takt::cpu {
namespace {

/// The place of one row inside a block: its strip, and its lane's byte offset in each vector.
struct Place {
    int row, strip, lane_byte;
    explicit Place(int r) : row(r), strip(r / kStripRows), lane_byte(r % kStripRows * 4) {}
    /// In vector `vector` of a plane of its strip.
    [[nodiscard]] int lane(int vector) const { return vector * 64 + lane_byte; }
};

void put_u16(uint8_t* base, int index, uint16_t value) { std::memcpy(base + 2 * index, &value, 2); }
uint16_t get_u16(const uint8_t* base, int index) {
    uint16_t value;
    std::memcpy(&value, base + 2 * index, 2);
    return value;
}

void put_word(uint8_t* at, uint32_t word) { std::memcpy(at, &word, 4); }

/// One row's 32 quants into its lane of each plane, four columns (a word) at a time: a load spends its time here.
void put_quants(const PackedFormat& f, const Place& at, const uint8_t* q, uint8_t* block) {
    uint8_t* nibbles = block + f.nibbles_at(at.strip);
    uint8_t* twos = block + f.twos_at(at.strip);
    uint32_t quads[8], ones = 0;
    std::memcpy(quads, q, sizeof quads);
    for (int i = 0; i < 8; i++) {
        if (f.bytes) put_word(block + f.bytes_at(at.strip) + at.lane(i), quads[i]);
        if (f.ones) ones |= ((quads[i] >> f.ones_shift) & 0x01010101u) << i;
    }
    if (f.ones) put_word(block + f.ones_at(at.strip) + at.lane(0), ones);
    for (int v = 0; f.nibbles && v < 4; v++) {
        const uint32_t low = quads[2 * v] & 0x0f0f0f0fu, high = quads[2 * v + 1] & 0x0f0f0f0fu;
        put_word(nibbles + at.lane(v), low | high << 4);
    }
    for (int t = 0; f.twos && t < 2; t++) {
        uint32_t word = 0;
        for (int j = 0; j < 4; j++) word |= ((quads[4 * t + j] >> (f.nibbles ? 4 : 0)) & 0x03030303u) << (2 * j);
        put_word(twos + at.lane(t), word);
    }
}

void get_quants(const PackedFormat& f, const Place& at, const uint8_t* block, uint8_t* q) {
    const uint8_t* first = block + f.nibbles_at(at.strip);   // or whole bytes
    const uint8_t* twos = block + f.twos_at(at.strip);
    for (int c = 0; c < kBlockColumns; c++) {
        int value = 0;
        if (f.bytes) value = first[at.lane(c / 4) + c % 4];
        if (f.nibbles) value = (first[at.lane(c / 8) + c % 4] >> (c % 8 < 4 ? 0 : 4)) & 15;
        if (f.twos) {
            const int two = (twos[at.lane(c / 16) + c % 4] >> (2 * (c / 4 % 4))) & 3;
            value |= f.nibbles ? two << 4 : two;
        }
        if (f.ones) value |= ((block[f.ones_at(at.strip) + at.lane(0) + c % 4] >> (c / 4)) & 1) << f.ones_shift;
        q[c] = static_cast<uint8_t>(value);
    }
}

void put_block(const PackedFormat& f, const Place& at, const BlockQuants& b, uint8_t* header, uint8_t* block) {
    uint8_t* scales = f.header_bytes > 0 ? header : block;
    put_u16(scales, at.row, b.d);
    if (f.has_min) put_u16(scales + 64, at.row, b.m);
    if (f.header_bytes > 0) {
        block[at.row] = b.scales[0];
        block[32 + at.row] = b.scales[1];
    }
    put_quants(f, at, b.q, block);
}

/// Plain rows may have any number of columns: the packed block's last columns stay zero.
void pack_plain(const StripSource& source, int strip, int64_t cols, size_t element, uint8_t* out) {
    for (int i = 0; i < source.count; i++) {
        const uint8_t* row = source.tensor->row(source.first + i);
        const size_t at = static_cast<size_t>(strip * kStripRows + i) * element;
        for (int64_t c = 0; c < cols; c++) {
            const auto column = static_cast<size_t>(c);
            std::memcpy(out + column * kGroupRows * element + at, row + column * element, element);
        }
    }
}

float plain_value(DType type, const uint8_t* p) {
    float f = 0.0f;
    uint16_t h = 0;
    if (type == DType::f32) {
        std::memcpy(&f, p, 4);
        return f;
    }
    std::memcpy(&h, p, 2);
    return type == DType::f16 ? f16_to_f32(h) : bf16_to_f32(h);
}

BlockQuants packed_block(DType type, const uint8_t* group, int64_t index, int row) {
    const PackedFormat f = packed_format(type);
    const uint8_t* record = group + index / f.blocks_per_record * f.record_bytes();
    const uint8_t* block = record + f.header_bytes + index % f.blocks_per_record * f.block_bytes();
    const uint8_t* scales = f.header_bytes > 0 ? record : block;
    BlockQuants quants;
    quants.d = get_u16(scales, row);
    if (f.has_min) quants.m = get_u16(scales + 64, row);
    if (f.header_bytes > 0) {
        quants.scales[0] = block[row];
        quants.scales[1] = block[32 + row];
    }
    get_quants(f, Place(row), block, quants.q);
    return quants;
}

}  // namespace

void pack_group(const StripSource& low, const StripSource& high, uint8_t* out) {
    const HostTensor& tensor = *low.tensor;
    const DType type = tensor.type;
    std::memset(out, 0, group_bytes(type, tensor.cols));
    const PackedFormat f = packed_format(type);
    for (int strip = 0; strip < 2; strip++) {
        const StripSource& source = strip == 0 ? low : high;
        if (is_plain(type)) {
            pack_plain(source, strip, tensor.cols, dtype_bytes(type, 1), out);
            continue;
        }
        for (int i = 0; i < source.count; i++) {
            const Place at(strip * kStripRows + i);
            const uint8_t* row = source.tensor->row(source.first + i);
            for (int64_t b = 0; b < num_blocks(tensor.cols); b++) {
                uint8_t* record = out + b / f.blocks_per_record * f.record_bytes();
                uint8_t* block = record + f.header_bytes + b % f.blocks_per_record * f.block_bytes();
                put_block(f, at, read_block(type, row, b), record, block);
            }
        }
    }
}

void unpack_block(DType type, const uint8_t* group, int64_t block, float* out) {
    for (int row = 0; row < kGroupRows; row++) {
        float values[kBlockColumns];
        block_to_float(type, packed_block(type, group, block, row), values);
        for (int c = 0; c < kBlockColumns; c++) out[c * kGroupRows + row] = values[c];
    }
}

void unpack_row(DType type, const uint8_t* group, int64_t cols, int row, float* out) {
    if (is_plain(type)) {
        const size_t element = dtype_bytes(type, 1);
        for (int64_t c = 0; c < cols; c++) {
            out[c] = plain_value(type, group + (static_cast<size_t>(c) * kGroupRows + static_cast<size_t>(row)) * element);
        }
        return;
    }
    for (int64_t b = 0; b < num_blocks(cols); b++) {
        block_to_float(type, packed_block(type, group, b, row), out + b * kBlockColumns);
    }
}

void row_to_float(const HostTensor& tensor, int64_t row, float* out) {
    const uint8_t* p = tensor.row(row);
    if (is_plain(tensor.type)) {
        const size_t element = dtype_bytes(tensor.type, 1);
        for (int64_t c = 0; c < tensor.cols; c++) out[c] = plain_value(tensor.type, p + static_cast<size_t>(c) * element);
        return;
    }
    for (int64_t b = 0; b < num_blocks(tensor.cols); b++) {
        block_to_float(tensor.type, read_block(tensor.type, p, b), out + b * kBlockColumns);
    }
}

}  // namespace takt::cpu
