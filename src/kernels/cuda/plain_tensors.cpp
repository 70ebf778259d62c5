// Unpacks GGUF's blocks to bf16; see plain_tensors.h.
#include "kernels/cuda/plain_tensors.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/convert.h"

namespace takt::cuda {
namespace {

constexpr int64_t kBlock = 32;

bool is_plain(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }
bool is_quantised(DType t) { return dtype_info(t).block_elements > 1; }

void unpack_row(const HostTensor& part, int64_t row, uint16_t* out) {
    for (int64_t b = 0; b < part.cols / kBlock; ++b) {
        float values[kBlock];
        cpu::block_to_float(part.type, cpu::read_block(part.type, part.row(row), b), values);
        for (int64_t i = 0; i < kBlock; ++i) out[b * kBlock + i] = cpu::f32_to_bf16(values[i]);
    }
}

}   // namespace

Result<PlainTensors> PlainTensors::of(std::span<const HostTensor> parts) {
    PlainTensors plain;
    plain.unpacked_.reserve(parts.size());
    for (const HostTensor& part : parts) {
        if (is_plain(part.type)) {
            plain.tensors_.push_back(part);
            continue;
        }
        if (!is_quantised(part.type)) {
            return Error{std::string("weights of type ") + dtype_info(part.type).name + " are not available on CUDA"};
        }
        std::vector<uint16_t>& values = plain.unpacked_.emplace_back(static_cast<size_t>(part.rows * part.cols));
        for (int64_t r = 0; r < part.rows; ++r) unpack_row(part, r, values.data() + r * part.cols);
        plain.tensors_.push_back({values.data(), DType::bf16, part.rows, part.cols});
    }
    return plain;
}

}   // namespace takt::cuda
