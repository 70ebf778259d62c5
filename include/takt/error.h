// takt::errc: every way a request can end or be refused. One table maps each to its wire code and HTTP status (contract, section 4).
#pragma once

#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>
#include <string>
#include <string_view>

namespace takt {

enum class errc {
    ok = 0,
    bad_request,
    duplicate_id,
    context_too_long,
    too_large,
    unauthorized,
    not_found,
    queue_full,
    deadline_unreachable,
    rate_limited,
    deadline_exceeded,
    draining,
    device_lost,
    internal,
    cancelled,        ///< never on the wire as an error: a cancelled request ends with reason "cancelled"
};

const boost::system::error_category& takt_category() noexcept;

inline boost::system::error_code make_error_code(errc e) noexcept {
    return {static_cast<int>(e), takt_category()};
}

/// One row of the table: wire `code` and HTTP status of an errc.
struct ErrorInfo {
    std::string_view code;
    int http_status;
};
ErrorInfo error_info(errc e) noexcept;

/// Configuration, model file or text could not be used. `what()` names file and position, the value found and the value allowed.
class load_error : public boost::system::system_error {
public:
    load_error(errc code, const std::string& text) : system_error(make_error_code(code), text), text_(text) {}
    [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

private:
    std::string text_;
};

/// Wrong usage or configuration, found before any memory was taken (exit code 2 of the program).
class config_error : public load_error {
public:
    explicit config_error(const std::string& text) : load_error(errc::bad_request, text) {}
};

}  // namespace takt

namespace boost::system {
template <>
struct is_error_code_enum<takt::errc> : std::true_type {};
}  // namespace boost::system
