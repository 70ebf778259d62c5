// Any bytes as config.toml or, where their number is odd, as an override: a configuration, or a config_error that says where.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <takt/config.h>
#include <takt/error.h>

namespace {

/// The bytes as a file that is never on a disk.
std::string memory_file(const std::uint8_t* data, std::size_t size) {
    static const int file = memfd_create("config.toml", 0);
    if (file < 0 || ftruncate(file, 0) != 0) std::abort();
    if (size != 0 && pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
    return "/proc/self/fd/" + std::to_string(file);
}

template <class F>
void expect_config_error(F&& load) {
    try {
        takt::validate(load());
    } catch (const takt::config_error& error) {
        if (std::string_view(error.what()).empty()) std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size % 2 == 0) {
        const std::string path = memory_file(data, size);
        expect_config_error([&] { return takt::load_config(path); });
    } else {
        const std::string text(reinterpret_cast<const char*>(data), size);
        expect_config_error([&] { return takt::load_config("", {text.substr(0, text.find('\n'))}); });
    }
    return 0;
}
