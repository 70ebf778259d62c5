// Readers of Hugging Face's tokenizer.json and tokenizer_config.json into plain data. What real BPE files use is taken;
// everything else is refused by its name. Pure; any thread; the texts come from the caller.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/status.h"
#include "model/tokenizer_spec.h"

namespace takt {

/// A BPE tokenizer.json. The ids of end and padding tokens are not in that file: see apply_tokenizer_config().
Result<TokenizerSpec> parse_tokenizer_json(std::string_view text);

/// What takt takes from tokenizer_config.json.
struct TokenizerConfigFile {
    std::optional<std::string> bos_token;
    std::optional<std::string> eos_token;
    std::optional<std::string> unknown_token;
    std::optional<std::string> pad_token;
    std::optional<bool> add_bos;
    std::string chat_template;  ///< the one named "default" where there are several; empty: none
};

Result<TokenizerConfigFile> parse_tokenizer_config(std::string_view text);

/// Sets the spec's special ids from the names; a name that the vocabulary lacks is an Error.
Result<bool> apply_tokenizer_config(const TokenizerConfigFile& config, TokenizerSpec& spec);

}  // namespace takt
