// Bodies of POST /v1/chat/completions and /v1/completions to takt requests. Pure; strict: a field that nobody knows, or
// that this version has not, is an error that names it.
#pragma once

#include <takt/request.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/failure.h"
#include "server/http_message.h"

namespace takt::server {

struct OpenAiRequest {
    std::vector<Request> requests;      ///< prompt by prompt, each `num_choices` times
    std::size_t num_choices = 1;        ///< n
    bool stream = false;
    bool include_usage = false;
    bool logprobs = false;
    Failure error;
};

/// `model_name`: the loaded one; another `model` is not found.
OpenAiRequest parse_chat_body(std::string_view body, std::string_view model_name);
OpenAiRequest parse_completion_body(std::string_view body, std::string_view model_name);

/// x-slo-ttft-ms and x-slo-tpot-ms, where the body did not say.
Failure apply_slo_headers(const HttpRequest& http, Request& request);

/// The error of a `model` that is not `model_name`; ok if it is or none was named.
Failure check_model(const std::optional<std::string>& found, std::string_view model_name);

}  // namespace takt::server
