// GgufWriter: the bytes of a GGUF file as the format says, each part open to a test that wants it wrong. Test code only.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace takt {

class GgufWriter {
public:
    using Bytes = std::vector<uint8_t>;

    // What the header says, where a test wants another number than the true one.
    std::string magic = "GGUF";
    uint32_t version = 3;
    int64_t extra_values = 0;
    int64_t extra_tensors = 0;
    uint64_t alignment = 32;   ///< of the data; the key itself is written by add("general.alignment", ...)

    template <class T>
    static void put(Bytes& out, T value) {
        const size_t at = out.size();
        out.resize(at + sizeof(T));
        std::memcpy(out.data() + at, &value, sizeof(T));
    }
    static void put_text(Bytes& out, std::string_view text) {
        put(out, uint64_t{text.size()});
        out.insert(out.end(), text.begin(), text.end());
    }

    /// A value whose type and bytes the caller answers for. Type numbers are GGUF's.
    void add_raw(std::string_view key, uint32_t type, const Bytes& value) {
        put_text(values_, key);
        put(values_, type);
        values_.insert(values_.end(), value.begin(), value.end());
        ++num_values_;
    }
    void add(std::string_view key, uint32_t value) { add_scalar(key, 4, value); }
    void add(std::string_view key, int32_t value) { add_scalar(key, 5, value); }
    void add(std::string_view key, float value) { add_scalar(key, 6, value); }
    void add(std::string_view key, bool value) { add_scalar(key, 7, static_cast<uint8_t>(value)); }
    void add(std::string_view key, uint64_t value) { add_scalar(key, 10, value); }
    void add(std::string_view key, std::string_view value) {
        Bytes bytes;
        put_text(bytes, value);
        add_raw(key, 8, bytes);
    }
    void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
    void add(std::string_view key, const std::vector<std::string>& values) {
        Bytes bytes = array_head(8, values.size());
        for (const std::string& text : values) put_text(bytes, text);
        add_raw(key, 9, bytes);
    }
    void add(std::string_view key, const std::vector<float>& values) { add_array(key, 6, values); }
    void add(std::string_view key, const std::vector<int32_t>& values) { add_array(key, 5, values); }

    static Bytes array_head(uint32_t type, uint64_t count) {
        Bytes bytes;
        put(bytes, type);
        put(bytes, count);
        return bytes;
    }

    /// A tensor whose place and bytes follow those of the one before. `shape`: fastest dimension first.
    void add_tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type, const Bytes& data) {
        data_.resize((data_.size() + alignment - 1) / alignment * alignment);
        add_tensor_info(name, shape, type, data_.size());
        data_.insert(data_.end(), data.begin(), data.end());
    }
    /// Only the description: the offset may point anywhere.
    void add_tensor_info(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type, uint64_t offset) {
        put_text(infos_, name);
        put(infos_, static_cast<uint32_t>(shape.size()));
        for (const uint64_t size : shape) put(infos_, size);
        put(infos_, type);
        put(infos_, offset);
        ++num_tensors_;
    }

    [[nodiscard]] Bytes bytes() const {
        Bytes out(magic.begin(), magic.end());
        put(out, version);
        put(out, static_cast<uint64_t>(num_tensors_ + extra_tensors));
        put(out, static_cast<uint64_t>(num_values_ + extra_values));
        out.insert(out.end(), values_.begin(), values_.end());
        out.insert(out.end(), infos_.begin(), infos_.end());
        if (num_tensors_ > 0) out.resize((out.size() + alignment - 1) / alignment * alignment);
        out.insert(out.end(), data_.begin(), data_.end());
        return out;
    }

private:
    template <class T>
    void add_scalar(std::string_view key, uint32_t type, T value) {
        Bytes bytes;
        put(bytes, value);
        add_raw(key, type, bytes);
    }
    template <class T>
    void add_array(std::string_view key, uint32_t type, const std::vector<T>& values) {
        Bytes bytes = array_head(type, values.size());
        for (const T value : values) put(bytes, value);
        add_raw(key, 9, bytes);
    }

    Bytes values_, infos_, data_;
    int64_t num_values_ = 0, num_tensors_ = 0;
};

}  // namespace takt
