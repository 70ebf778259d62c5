// Reading the address of a server.
#include "cli/bench/url.h"

#include <takt/error.h>

#include <algorithm>

namespace takt::cli {

namespace {

[[noreturn]] void refuse(const std::string& text) {
    throw config_error("--url: found " + text + ", allowed ws://HOST:PORT/v1/stream or http://HOST:PORT/v1 (or wss, https)");
}

}  // namespace

std::string BenchUrl::authority() const {
    const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
    return shown + ":" + port;
}

BenchUrl parse_bench_url(const std::string& text) {
    BenchUrl out;
    out.text = text;
    const std::size_t mark = text.find("://");
    if (mark == std::string::npos) refuse(text);
    const std::string scheme = text.substr(0, mark);
    out.websocket = scheme == "ws" || scheme == "wss";
    out.tls = scheme == "wss" || scheme == "https";
    if (!out.websocket && scheme != "http" && scheme != "https") refuse(text);
    const std::size_t begin = mark + 3;
    const std::size_t slash = std::min(text.find('/', begin), text.size());
    std::string authority = text.substr(begin, slash - begin);
    out.path = text.substr(slash);
    while (!out.path.empty() && out.path.back() == '/') out.path.pop_back();
    if (out.path.empty()) out.path = out.websocket ? "/v1/stream" : "/v1";
    const bool bracketed = !authority.empty() && authority.front() == '[';
    const std::size_t end = bracketed ? authority.find(']') : std::min(authority.rfind(':'), authority.size());
    if (end == std::string::npos) refuse(text);
    out.host = bracketed ? authority.substr(1, end - 1) : authority.substr(0, end);
    const std::string rest = authority.substr(bracketed ? end + 1 : end);
    out.port = rest.empty() ? (out.tls ? "443" : "80") : rest.substr(1);
    const bool digits = !out.port.empty() && out.port.size() <= 5 && out.port.find_first_not_of("0123456789") == std::string::npos;
    if (out.host.empty() || (!rest.empty() && rest.front() != ':') || !digits) refuse(text);
    return out;
}

}  // namespace takt::cli
