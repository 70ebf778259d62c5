// MappedFile: a whole file mapped read-only. Move-only; any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "kernels/status.h"

namespace takt {

class MappedFile {
public:
    static Result<MappedFile> open(const std::string& path);
    MappedFile() = default;
    MappedFile(MappedFile&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    MappedFile& operator=(MappedFile&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile();

    [[nodiscard]] std::span<const uint8_t> bytes() const { return {static_cast<const uint8_t*>(data_), bytes_}; }

private:
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace takt
