// GgufFiles: one GGUF file, or all files of a model that was split (NAME-00001-of-00003.gguf ...), mapped and indexed. The first
// one's keys count. Immutable after open; any thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/status.h"
#include "model/gguf.h"
#include "model/mapped_file.h"

namespace takt {

class GgufFiles {
public:
    /// `path`: the only file, or the first of several; the others must lie beside it. Errors name the file.
    static Result<GgufFiles> open(const std::string& path);

    /// The file with the keys.
    [[nodiscard]] const GgufFile& first() const { return files_.front(); }
    [[nodiscard]] const std::vector<GgufFile>& files() const { return files_; }

private:
    std::vector<MappedFile> mappings_;
    std::vector<GgufFile> files_;
};

}  // namespace takt
