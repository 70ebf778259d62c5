// Split GGUF models: opened by their first file, every part checked against it, and equal to the same model in one file.
#include "catch.h"

#include <filesystem>

#include "model/gguf_files.h"
#include "model/model_file.h"
#include "synthetic_gguf.h"
#include "temporary_folder.h"

using namespace takt;
using namespace takt::test;

namespace {

const SyntheticModel& model() {
    static const SyntheticModel made(SyntheticShape{});
    return made;
}

void write_parts(const TemporaryFolder& folder, const std::vector<std::vector<uint8_t>>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
        folder.write("m-0000" + std::to_string(i + 1) + "-of-0000" + std::to_string(parts.size()) + ".gguf", parts[i]);
    }
}

std::string error_of(const TemporaryFolder& folder, const std::string& name) {
    const auto file = ModelFile::open(folder.file(name));
    return file ? "opened" : file.error().substr(folder.path().size() + 1);
}

}  // namespace

TEST_CASE("a split model opens by its first file and holds what the whole one holds") {
    const TemporaryFolder folder;
    write_parts(folder, synthetic_gguf_parts(model(), 3));
    const auto split = ModelFile::open(folder.file("m-00001-of-00003.gguf"));
    INFO((split ? "" : split.error()));
    REQUIRE(split.ok());
    const auto whole = ModelFile::open(folder.write("whole.gguf", synthetic_gguf(model())));
    REQUIRE(whole.ok());
    CHECK(split.value()->tensor_bytes() == whole.value()->tensor_bytes());
    CHECK(split.value()->config().vocab == whole.value()->config().vocab);
    CHECK(split.value()->tokenizer_spec().value().tokens == whole.value()->tokenizer_spec().value().tokens);
    const HostTensor& a = split.value()->tensors().layers[1].down;
    const HostTensor& b = whole.value()->tensors().layers[1].down;
    REQUIRE(a.bytes() == b.bytes());
    CHECK(std::memcmp(a.data, b.data, a.bytes()) == 0);
}

TEST_CASE("a split model with a part that is missing, wrong or not the first is refused by name") {
    const TemporaryFolder folder;
    const auto parts = synthetic_gguf_parts(model(), 3);
    write_parts(folder, parts);
    CHECK(error_of(folder, "m-00002-of-00003.gguf").find("name its first one, which ends with \"-00001-of-00003.gguf\"") !=
          std::string::npos);
    folder.write("other.gguf", parts[0]);
    CHECK(error_of(folder, "other.gguf").find("other.gguf: a model of 3 files") == 0);
    folder.write("m-00003-of-00003.gguf", parts[1]);
    CHECK(error_of(folder, "m-00001-of-00003.gguf") == "m-00003-of-00003.gguf: part 2 of 3 found, part 3 of 3 expected");
    folder.write("m-00003-of-00003.gguf", synthetic_gguf(model()));
    CHECK(error_of(folder, "m-00001-of-00003.gguf") == "m-00003-of-00003.gguf: key \"split.no\" is missing");
    std::filesystem::remove(folder.file("m-00003-of-00003.gguf"));
    CHECK(error_of(folder, "m-00001-of-00003.gguf").find("m-00003-of-00003.gguf: cannot be opened") == 0);
    write_parts(folder, synthetic_gguf_parts(model(), 3, 1));
    CHECK(error_of(folder, "m-00001-of-00003.gguf").find("tensors found in all files, ") != std::string::npos);
}
