// JSON text made by hand must be what a JSON reader reads back.
#include "server/json_text.h"

#include <boost/json/parse.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "catch.h"

using namespace takt::server;
namespace json = boost::json;

namespace {

std::string quoted(std::string_view text) {
    std::string out;
    append_json_string(out, text);
    return out;
}

template <class Number>
std::string number_text(Number value) {
    std::string out;
    append_json_number(out, value);
    return out;
}

}  // namespace

TEST_CASE("valid text comes back as it went in") {
    for (const std::string& text : {std::string(), std::string("plain"), std::string("\"\\/\b\f\n\r\t"),
                                    std::string("\x00\x01\x1F\x7F", 4), std::string("\u00e9\u20ac\U0001F600"),
                                    std::string("\xEF\xBF\xBF\xF4\x8F\xBF\xBF")}) {
        CHECK(json::parse(quoted(text)).as_string() == text);
        CHECK(valid_utf8(text) == text);
    }
}

TEST_CASE("each byte that is not UTF-8 becomes one replacement character") {
    const std::string r = "\xEF\xBF\xBD";
    CHECK(valid_utf8("a\xFF" "b") == "a" + r + "b");
    CHECK(valid_utf8("\xC3") == r);
    CHECK(valid_utf8("\xC0\x80") == r + r);             // overlong
    CHECK(valid_utf8("\xE0\x80\x80") == r + r + r);     // overlong
    CHECK(valid_utf8("\xED\xA0\x80") == r + r + r);     // a surrogate
    CHECK(valid_utf8("\xF4\x90\x80\x80") == r + r + r + r);   // past U+10FFFF
    CHECK(valid_utf8("\xF0\x9F\x98") == r + r + r);     // cut short
    CHECK(valid_utf8("\x80x") == r + "x");
}

TEST_CASE("random bytes always make a JSON string that says the same as valid_utf8") {
    std::mt19937_64 random(7);
    for (int round = 0; round < 2000; ++round) {
        std::string bytes;
        const std::size_t length = random() % 24;
        for (std::size_t i = 0; i < length; ++i) {
            // Half of them around the interesting lead bytes.
            bytes += static_cast<char>(random() % 2 == 0 ? random() % 256 : 0xC0 + random() % 0x38);
        }
        CHECK(json::parse(quoted(bytes)).as_string() == valid_utf8(bytes));
    }
}

TEST_CASE("numbers read back exactly; what JSON cannot say stays readable") {
    for (const double value : {0.0, -0.5, 1e-300, 1.7976931348623157e308, 0.1, 1.0 / 3.0, 123456.0}) {
        CHECK(json::parse(number_text(value)).to_number<double>() == value);
    }
    CHECK(number_text(-std::numeric_limits<double>::infinity()) == "-9999");
    CHECK(number_text(std::numeric_limits<double>::infinity()) == "9999");
    CHECK(number_text(std::nan("")) == "null");
    CHECK(number_text(std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
    CHECK(number_text(std::numeric_limits<std::uint64_t>::max()) == "18446744073709551615");
}
