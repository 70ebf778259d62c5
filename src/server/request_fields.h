// The fields of a request that the native frames and the OpenAI bodies share: sampling, stop strings, deadlines, chat
// messages. Pure: JSON in, takt::Request out; problems stay in the FieldReader.
#pragma once

#include <takt/request.h>

#include "server/field_reader.h"

namespace takt::server {

/// temperature, top_p, top_k, min_p, the penalties, logit_bias, ignore_eos, parse_special.
void read_sampling(FieldReader& fields, Request& request);

/// A whole number of any sign or an unsigned 64-bit one; negative ones (`allow_negative`) wrap.
void read_seed(FieldReader& fields, Request& request, bool allow_negative);

/// `stop`: a string or up to 8.
void read_stop(FieldReader& fields, Request& request);

/// class, ttft_ms, itl_ms, deadline_ms.
void read_service(FieldReader& fields, Request& request);

/// `messages` into request.messages: objects with a role; a list of text parts becomes one string; other parts are not
/// available.
void read_messages(FieldReader& fields, Request& request);

/// `tokens`-like list of ids under `name`.
void read_token_ids(FieldReader& fields, std::string_view name, Request& request);

/// tools and chat_template_kwargs; both need messages.
void read_template_extras(FieldReader& fields, Request& request);

/// `tool_choice`, once the tools are read: `none` keeps them from the template, `auto` does not; a forced call, which needs a
/// grammar, is not available.
void read_tool_choice(FieldReader& fields, Request& request);

/// The text of a message's content: a string, or a list of text parts joined. Empty optional: `problem` is set.
std::optional<std::string> content_text(const boost::json::value& content, std::string& problem);

}  // namespace takt::server
