// Status and Result: how every layer below src/runtime reports failure. No exceptions, no heap on the success path.
// A Status carries a backend code and a static string; a Result<T> carries a value or an Error with text made at run time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace takt {

/// Outcome of one device call. `code` 0 is success; others are the backend's own (cudaError_t, errno, or StatusCode).
/// `message` has static storage and is never null.
struct [[nodiscard]] Status {
    int32_t code = 0;
    const char* message = "";

    [[nodiscard]] bool ok() const { return code == 0; }
    explicit operator bool() const { return ok(); }
};

/// Codes that takt's own devices use (negative, so that they never meet a backend's).
enum StatusCode : int32_t {
    kStatusOutOfMemory = -1,
    kStatusBadArgument = -2,
    kStatusNotInCapture = -3,      ///< forbidden while a stream is being captured
    kStatusStreamFailed = -4,      ///< an earlier operation of this stream failed (sticky)
    kStatusUnsupported = -5,       ///< the device has no such operation
    kStatusDeviceLost = -6,
    kStatusInjectedFault = -7,     ///< the sim device's scripted fault
};

/// A failure with text for a person: names the thing, the value found and the value allowed.
struct Error {
    std::string message;
};

/// A value or an Error. `value()` of a failed result is a bug (asserted by std::get's exception in debug builds only).
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}             // NOLINT: implicit on purpose
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}         // NOLINT: implicit on purpose

    [[nodiscard]] bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }
    T& value() & { return *std::get_if<0>(&state_); }
    const T& value() const& { return *std::get_if<0>(&state_); }
    T&& value() && { return std::move(*std::get_if<0>(&state_)); }
    [[nodiscard]] const std::string& error() const { return std::get_if<1>(&state_)->message; }

private:
    std::variant<T, Error> state_;
};

}  // namespace takt
