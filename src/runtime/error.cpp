// The error category and the one table from errc to wire code and HTTP status (contract, section 4).
#include <takt/error.h>

namespace takt {
namespace {

struct Row {
    errc code;
    ErrorInfo info;
    const char* text;
};

constexpr Row kRows[] = {
    {errc::ok, {"ok", 200}, "success"},
    {errc::bad_request, {"bad_request", 400}, "bad request"},
    {errc::duplicate_id, {"duplicate_id", 400}, "the id is in use by a live request"},
    {errc::context_too_long, {"context_too_long", 400}, "the prompt is longer than the context"},
    {errc::too_large, {"too_large", 413}, "the message is too large"},
    {errc::unauthorized, {"unauthorized", 401}, "unauthorized"},
    {errc::not_found, {"not_found", 404}, "not found"},
    {errc::queue_full, {"queue_full", 429}, "the queue is full"},
    {errc::deadline_unreachable, {"deadline_unreachable", 429}, "the deadline cannot be met"},
    {errc::rate_limited, {"rate_limited", 429}, "the tenant's tokens a minute are spent"},
    {errc::deadline_exceeded, {"deadline_exceeded", 504}, "the request's deadline has passed"},
    {errc::draining, {"draining", 503}, "the server is draining"},
    {errc::device_lost, {"device_lost", 503}, "the device is lost"},
    {errc::internal, {"internal", 500}, "internal error"},
    {errc::cancelled, {"internal", 500}, "cancelled"},
};

const Row& row_of(int value) noexcept {
    for (const Row& row : kRows) {
        if (static_cast<int>(row.code) == value) return row;
    }
    return kRows[static_cast<int>(errc::internal)];
}

class Category final : public boost::system::error_category {
public:
    [[nodiscard]] const char* name() const noexcept override { return "takt"; }
    [[nodiscard]] std::string message(int value) const override { return row_of(value).text; }
};

}  // namespace

const boost::system::error_category& takt_category() noexcept {
    static const Category category;
    return category;
}

ErrorInfo error_info(errc e) noexcept { return row_of(static_cast<int>(e)).info; }

}  // namespace takt
