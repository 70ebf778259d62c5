// PlainTensors: the parts of a linear layer with quantised ones unpacked to bf16, for kernels that know plain types only. Lives while a
// layer is uploaded. Pure host code.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/status.h"
#include "kernels/tensor.h"

namespace takt::cuda {

class PlainTensors {
public:
    /// Plain parts are passed through as views of the same memory. An Error names a type that cannot be unpacked.
    static Result<PlainTensors> of(std::span<const HostTensor> parts);
    [[nodiscard]] std::span<const HostTensor> tensors() const { return tensors_; }

private:
    std::vector<HostTensor> tensors_;
    std::vector<std::vector<uint16_t>> unpacked_;   // bf16
};

}   // namespace takt::cuda
