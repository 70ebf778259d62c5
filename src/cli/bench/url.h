// BenchUrl: the address of a server to load, taken apart. Pure.
#pragma once

#include <string>

namespace takt::cli {

struct BenchUrl {
    std::string text;        ///< as given
    bool websocket = false;  ///< ws: takt's native protocol; http: an OpenAI server
    bool tls = false;
    std::string host;        ///< without brackets
    std::string port;
    std::string path;        ///< of a WebSocket the whole path, else the base that the OpenAI paths follow

    /// What the Host header says.
    [[nodiscard]] std::string authority() const;
};

/// ws://HOST[:PORT][/v1/stream] or http://HOST[:PORT][/v1]; wss and https too. @throws config_error.
BenchUrl parse_bench_url(const std::string& text);

}  // namespace takt::cli
