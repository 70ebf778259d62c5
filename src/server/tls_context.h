// The certificate and key of the server, read at start.
#pragma once

#include <takt/config.h>

#include <boost/asio/ssl/context.hpp>
#include <memory>

namespace takt::server {

/// Null when neither server.tls_cert nor server.tls_key is set.
/// @throws config_error when only one is, load_error naming the file that cannot be used.
std::unique_ptr<boost::asio::ssl::context> make_tls_context(const ServerSection& section);

}  // namespace takt::server
