// Server: listens, accepts within its limits, owns every connection, drains. One thread: the io_context's. A client of
// include/takt like any program.
#pragma once

#include <takt/config.h>
#include <takt/engine.h>

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

#include "server/access.h"

namespace takt::server {

class Server {
public:
    /// @throws config_error for keys that cannot be read, a bind that needs --insecure, limits beyond the system's; load_error for a
    /// certificate or key that cannot be used.
    Server(asio::io_context& io, Config config, const Environment& environment, bool insecure);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    /// Binds and starts accepting. @throws load_error naming the address and the reason.
    void listen();
    [[nodiscard]] int port() const;
    /// From now on requests are served.
    void set_engine(Engine engine);
    /// Empty until it is set.
    [[nodiscard]] const Engine& engine() const;
    /// Whether it speaks TLS.
    [[nodiscard]] bool secure() const;
    [[nodiscard]] bool device_lost() const;

    /// Stops accepting, lets what runs end for drain_seconds, cancels the rest, closes every connection.
    asio::awaitable<void> drain();
    /// Frees the engine; after drain().
    void release_engine();

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace takt::server
