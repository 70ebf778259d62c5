// SafetensorsFile: the index of one .safetensors file. Everything in it is checked before use: the header's length, every type,
// shape and offset, and that the tensors cover the data without a hole or an overlap, as the format demands. Messages name file,
// tensor, found and expected. Tensors are views into the mapping. Knows no architecture.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/status.h"
#include "kernels/tensor.h"

namespace takt {

struct SafetensorsTensor {
    std::string name;
    HostTensor tensor;             ///< rows = product of all dimensions but the last
    std::vector<int64_t> shape;    ///< as in the file: slowest dimension first
};

class SafetensorsFile {
public:
    /// `bytes` must outlive the index. `path` is for messages only. Pure: also the fuzzer's entry.
    static Result<SafetensorsFile> parse(std::span<const uint8_t> bytes, const std::string& path);

    [[nodiscard]] const std::string& path() const { return path_; }
    /// In the order of their data.
    [[nodiscard]] const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

private:
    std::string path_;
    std::vector<SafetensorsTensor> tensors_;
};

}  // namespace takt
