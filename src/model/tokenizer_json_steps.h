// The parts of tokenizer.json that change text: normaliser, pre-tokenizer, post-processor, decoder. Each function reads
// one of them into the spec or refuses it by name. Only tokenizer_json*.cpp include this.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "kernels/status.h"
#include "model/tokenizer_spec.h"

namespace takt::tokenizer_json {

/// Facts that several parts must agree on before the spec is complete.
struct Steps {
    bool byte_level = false;     ///< pre-tokenizer or decoder name ByteLevel
    bool space_marks = false;    ///< spaces become U+2581
    std::string bos;             ///< token text that the post-processor puts in front
    std::string eos;             ///< and behind
};

/// The member, or nullptr for a missing one, null, or a value that is no object.
const boost::json::value* member(const boost::json::value& object, std::string_view key);
std::string_view text_of(const boost::json::value* value, std::string_view fallback = {});
bool flag_of(const boost::json::value* value, bool fallback);
std::string_view type_of(const boost::json::value& step);

Result<bool> read_normalizer(const boost::json::value& root, TokenizerSpec& spec, Steps& steps);
Result<bool> read_pre_tokenizer(const boost::json::value& root, TokenizerSpec& spec, Steps& steps);
Result<bool> read_post_processor(const boost::json::value& root, Steps& steps);
Result<bool> read_decoder(const boost::json::value& root, TokenizerSpec& spec, Steps& steps);

}  // namespace takt::tokenizer_json
