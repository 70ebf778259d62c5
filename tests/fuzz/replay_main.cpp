// Drives a fuzz target without libFuzzer: runs each committed input of a folder, then seeded mutations of them, so that
// the target is a test on every compiler. The same inputs give the same run.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr int kMutationsPerInput = 500;

class Generator {
public:
    explicit Generator(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        state_ += 0x9E3779B97F4A7C15ull;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }

private:
    std::uint64_t state_;
};

Bytes read_file(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// A few byte flips, a cut or a doubled piece: enough to reach the error paths of a length-checked reader.
Bytes mutate(const Bytes& input, Generator& random) {
    Bytes out = input;
    const std::size_t num_changes = 1 + random.below(4);
    for (std::size_t i = 0; i < num_changes && !out.empty(); ++i) {
        const std::size_t at = random.below(out.size());
        switch (random.below(5)) {
        case 0: out[at] = static_cast<std::uint8_t>(random.next()); break;
        case 1: out[at] ^= static_cast<std::uint8_t>(1u << random.below(8)); break;
        case 2: out[at] = 0xFF; break;
        case 3: out.resize(at); break;
        default: {
            const std::size_t length = std::min<std::size_t>(out.size() - at, 1 + random.below(16));
            const Bytes piece(out.begin() + static_cast<std::ptrdiff_t>(at),
                              out.begin() + static_cast<std::ptrdiff_t>(at + length));
            out.insert(out.begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
        }
        }
    }
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::filesystem::path> files;
    for (int i = 1; i < argc; ++i) {
        if (!std::filesystem::is_directory(argv[i])) {
            std::fprintf(stderr, "no such folder of inputs: %s\n", argv[i]);
            return 1;
        }
        for (const auto& entry : std::filesystem::directory_iterator(argv[i])) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    if (files.empty()) {
        std::fputs("no inputs\n", stderr);
        return 1;
    }
    Generator random(1);
    std::size_t num_runs = 0;
    LLVMFuzzerTestOneInput(nullptr, 0);
    for (const auto& file : files) {
        const Bytes input = read_file(file);
        LLVMFuzzerTestOneInput(input.data(), input.size());
        for (int i = 0; i < kMutationsPerInput; ++i, ++num_runs) {
            const Bytes changed = mutate(input, random);
            LLVMFuzzerTestOneInput(changed.data(), changed.size());
        }
    }
    std::printf("%zu inputs, %zu mutations\n", files.size(), num_runs);
    return 0;
}
