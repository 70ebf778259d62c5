// Bit layouts of the GGUF block types.
#include "kernels/cpu/blocks.h"

#include <cstring>

#include "kernels/assert.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/packed_format.h"

namespace takt::cpu {
namespace {

uint16_t read_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

void read_nibbles(const uint8_t* p, uint8_t* q) {
    for (int i = 0; i < 16; i++) {
        q[i] = p[i] & 15;
        q[i + 16] = p[i] >> 4;
    }
}

void add_fifth_bits(const uint8_t* p, uint8_t* q) {
    for (int i = 0; i < 32; i++) q[i] = static_cast<uint8_t>(q[i] | ((p[i / 8] >> (i % 8)) & 1) << 4);
}

/// The 6-bit scale and minimum of sub-block b of Q4_K and Q5_K, from their 12 bytes.
void read_k4_scales(const uint8_t* s, int b, uint8_t* out) {
    if (b < 4) {
        out[0] = s[b] & 63;
        out[1] = s[b + 4] & 63;
    } else {
        out[0] = static_cast<uint8_t>((s[b + 4] & 15) | (s[b - 4] >> 6) << 4);
        out[1] = static_cast<uint8_t>((s[b + 4] >> 4) | (s[b] >> 6) << 4);
    }
}

void read_q2_k(const uint8_t* p, int b, BlockQuants& out) {
    const int half = b / 4, shift = 2 * (b % 4);
    for (int c = 0; c < 32; c++) out.q[c] = (p[16 + half * 32 + c] >> shift) & 3;
    out.scales[0] = p[2 * b];
    out.scales[1] = p[2 * b + 1];
    out.d = read_u16(p + 80);
    out.m = read_u16(p + 82);
}

void read_q3_k(const uint8_t* p, int b, BlockQuants& out) {
    const uint8_t* s = p + 96;
    const int half = b / 4, shift = 2 * (b % 4);
    for (int c = 0; c < 32; c++) {
        out.q[c] = static_cast<uint8_t>(((p[32 + half * 32 + c] >> shift) & 3) | ((p[c] >> b) & 1) << 2);
    }
    for (int h = 0; h < 2; h++) {
        const int i = 2 * b + h;
        const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
        const int high = (s[8 + i % 4] >> (2 * (i / 4))) & 3;
        out.scales[h] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    out.d = read_u16(p + 108);
}

void read_q4_k(const uint8_t* p, const uint8_t* high_bits, const uint8_t* quants, int b, BlockQuants& out) {
    out.d = read_u16(p);
    out.m = read_u16(p + 2);
    read_k4_scales(p + 4, b, out.scales);
    for (int c = 0; c < 32; c++) {
        const uint8_t byte = quants[b / 2 * 32 + c];
        out.q[c] = b % 2 == 0 ? byte & 15 : byte >> 4;
        if (high_bits != nullptr) out.q[c] = static_cast<uint8_t>(out.q[c] | ((high_bits[c] >> b) & 1) << 4);
    }
}

void read_q6_k(const uint8_t* p, int b, BlockQuants& out) {
    const int half = b / 4, j = b % 4;
    for (int c = 0; c < 32; c++) {
        const uint8_t byte = p[half * 64 + (j & 1) * 32 + c];
        const int low = j >= 2 ? byte >> 4 : byte & 15;
        out.q[c] = static_cast<uint8_t>(low | ((p[128 + half * 32 + c] >> (2 * j)) & 3) << 4);
    }
    out.scales[0] = p[192 + 2 * b];
    out.scales[1] = p[192 + 2 * b + 1];
    out.d = read_u16(p + 208);
}

}  // namespace

BlockQuants read_block(DType type, const uint8_t* row, int64_t index) {
    const DTypeInfo info = dtype_info(type);
    const int64_t per = info.block_elements / 32;
    const uint8_t* p = row + index / per * info.block_bytes;
    const int b = static_cast<int>(index % per);
    BlockQuants out;
    out.d = read_u16(p);
    switch (type) {
        case DType::q4_0: read_nibbles(p + 2, out.q); break;
        case DType::q4_1:
            out.m = read_u16(p + 2);
            read_nibbles(p + 4, out.q);
            break;
        case DType::q5_0:
            read_nibbles(p + 6, out.q);
            add_fifth_bits(p + 2, out.q);
            break;
        case DType::q5_1:
            out.m = read_u16(p + 2);
            read_nibbles(p + 8, out.q);
            add_fifth_bits(p + 4, out.q);
            break;
        case DType::q8_0:
            for (int c = 0; c < 32; c++) out.q[c] = static_cast<uint8_t>(p[2 + c] ^ 0x80);
            break;
        case DType::q2_k: read_q2_k(p, b, out); break;
        case DType::q3_k: read_q3_k(p, b, out); break;
        case DType::q4_k: read_q4_k(p, nullptr, p + 16, b, out); break;
        case DType::q5_k: read_q4_k(p, p + 16, p + 48, b, out); break;
        case DType::q6_k: read_q6_k(p, b, out); break;
        default: TAKT_ASSERT(false);
    }
    return out;
}

void block_to_float(DType type, const BlockQuants& block, float out[32]) {
    const PackedFormat f = packed_format(type);
    const float d = f16_to_f32(block.d), m = f16_to_f32(block.m);
    for (int c = 0; c < 32; c++) {
        float scale = d, minimum = 0.0f;
        switch (type) {
            case DType::q4_1:
            case DType::q5_1: minimum = -m; break;
            case DType::q4_k:
            case DType::q5_k:
                scale = d * static_cast<float>(block.scales[0]);
                minimum = m * static_cast<float>(block.scales[1]);
                break;
            case DType::q2_k:
                scale = d * static_cast<float>(block.scales[c / 16] & 15);
                minimum = m * static_cast<float>(block.scales[c / 16] >> 4);
                break;
            case DType::q3_k:
            case DType::q6_k: scale = d * static_cast<float>(static_cast<int8_t>(block.scales[c / 16])); break;
            default: break;
        }
        const float q = static_cast<float>(static_cast<int>(block.q[c]) - f.offset);
        out[c] = f.has_min ? scale * q - minimum : scale * q;
    }
}

}  // namespace takt::cpu
