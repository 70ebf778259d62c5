// Which reader opens a path; see model_file.h.
#include "model/model_file.h"

#include <sys/stat.h>

namespace takt {

Result<std::unique_ptr<ModelFile>> ModelFile::open(const std::string& path) {
    struct stat info {};
    const bool is_folder = ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
    return is_folder ? open_model_folder(path) : open_gguf_model(path);
}

Result<TokenizerSpec> ModelFile::tokenizer_spec() const {
    Result<TokenizerSpec> spec = read_tokenizer();
    if (spec && static_cast<int32_t>(spec.value().tokens.size()) > config_.vocab) {
        return Error{path_ + ": " + std::to_string(spec.value().tokens.size()) + " tokens, but the embedding has " +
                     std::to_string(config_.vocab) + " rows"};
    }
    return spec;
}

}  // namespace takt
