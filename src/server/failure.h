// Failure: what went wrong with a request, ready for any door. Plain data.
#pragma once

#include <takt/error.h>

#include <string>

namespace takt::server {

struct Failure {
    errc code = errc::ok;        ///< says which status
    std::string message;
    std::string param;           ///< the field that it is about; empty: none
    double retry_after_ms = 0;   ///< 0: none
    explicit operator bool() const { return code != errc::ok; }
};

}  // namespace takt::server
