// Reading PEM files into an OpenSSL context.
#include "server/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <takt/error.h>

#include <fstream>

namespace takt::server {

namespace ssl = boost::asio::ssl;

namespace {

[[noreturn]] void refuse(const char* key, const std::string& file, const std::string& why) {
    throw load_error(errc::internal, std::string("server.") + key + ": " + file + ": " + why);
}

// OpenSSL's own words for a missing file name its source lines; these do not.
void check_readable(const char* key, const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in || in.peek() == std::ifstream::traits_type::eof()) refuse(key, file, "cannot be read, or is empty");
}

}  // namespace

std::unique_ptr<ssl::context> make_tls_context(const ServerSection& section) {
    if (section.tls_cert.empty() && section.tls_key.empty()) return nullptr;
    if (section.tls_cert.empty()) throw config_error("server.tls_cert: found none beside server.tls_key, allowed both or neither");
    if (section.tls_key.empty()) throw config_error("server.tls_key: found none beside server.tls_cert, allowed both or neither");
    check_readable("tls_cert", section.tls_cert);
    check_readable("tls_key", section.tls_key);
    auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
    SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
    // A handshake costs the client as much as us; asking for another on the same connection does not.
    SSL_CTX_set_options(context->native_handle(), SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_NO_COMPRESSION);
    // Buffers of an idle connection go back: thousands of sockets wait.
    SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
    boost::system::error_code ec;
    // Else OpenSSL would ask at the terminal.
    context->set_password_callback([](std::size_t, ssl::context::password_purpose) { return std::string(); }, ec);
    context->use_certificate_chain_file(section.tls_cert, ec);
    if (ec) refuse("tls_cert", section.tls_cert, "no certificate in PEM form: " + ec.message());
    context->use_private_key_file(section.tls_key, ssl::context::pem, ec);
    if (ec) refuse("tls_key", section.tls_key, "no private key in PEM form without a password that fits server.tls_cert: " + ec.message());
    if (SSL_CTX_check_private_key(context->native_handle()) != 1) {
        ERR_clear_error();
        refuse("tls_key", section.tls_key, "does not belong to the certificate in " + section.tls_cert);
    }
    return context;
}

}  // namespace takt::server
