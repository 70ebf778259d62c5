// read_trace: three formats of recorded arrivals; see include/takt/trace.h.
#include <takt/trace.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <string_view>

#include <takt/error.h>

#include "runtime/sim/workload.h"
#include "runtime/text_file.h"

namespace takt {
namespace {

constexpr int64_t kMostTokens = 100'000'000;

class Reader {
public:
    Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

    bool next(std::string_view& line) {
        while (at_ < text_.size()) {
            const size_t end = std::min(text_.find('\n', at_), text_.size());
            line = text_.substr(at_, end - at_);
            at_ = end + 1;
            ++number_;
            if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
            if (!line.empty()) return true;
        }
        return false;
    }
    [[noreturn]] void fail(const std::string& what) const {
        throw load_error(errc::bad_request, name_ + ":" + std::to_string(number_) + ": " + what);
    }
    std::string_view field(std::string_view& rest) const {
        if (rest.data() == nullptr) fail("a field is missing");
        const size_t comma = rest.find(',');
        const std::string_view value = rest.substr(0, comma);
        rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
        return value;
    }
    double number(std::string_view text) const {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0) {
            fail("a number of 0 or more expected, \"" + std::string(text) + "\" found");
        }
        return value;
    }
    double seconds(std::string_view text) const {
        const double value = number(text);
        if (value > sim::kMostSeconds) fail("a time of 1e10 seconds at most expected, \"" + std::string(text) + "\" found");
        return value;
    }
    void end_of_line(std::string_view rest) const {
        if (rest.data() != nullptr) fail("a field too many: \"" + std::string(rest.substr(0, 60)) + "\"");
    }
    int64_t tokens(std::string_view text) const {
        const double value = number(text);
        if (value > static_cast<double>(kMostTokens) || value != std::floor(value)) {
            fail("a count of tokens expected, \"" + std::string(text) + "\" found");
        }
        return static_cast<int64_t>(value);
    }

private:
    std::string_view text_;
    const std::string& name_;
    size_t at_ = 0;
    int number_ = 0;
};

/// Days since an epoch of the proleptic Gregorian calendar.
int64_t days(int64_t year, int64_t month, int64_t day) {
    year -= month <= 2 ? 1 : 0;
    const int64_t era = year / 400, of_era = year - era * 400;
    const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
}

/// "2023-11-16 18:17:03.9799600" in seconds.
double stamp_seconds(const Reader& reader, std::string_view text) {
    if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[10] != ' ' || text[13] != ':' || text[16] != ':') {
        reader.fail("a time as 2023-11-16 18:17:03.98 expected, \"" + std::string(text) + "\" found");
    }
    const auto part = [&](size_t from, size_t count, double low, double high) {
        const double value = reader.number(text.substr(from, count));
        if (value < low || value > high || value != std::floor(value)) reader.fail("no such time: \"" + std::string(text) + "\"");
        return static_cast<int64_t>(value);
    };
    const int64_t day = days(part(0, 4, 1, 9999), part(5, 2, 1, 12), part(8, 2, 1, 31));
    const double seconds = reader.number(text.substr(17));
    if (seconds >= 61) reader.fail("no such time: \"" + std::string(text) + "\"");   // a leap second is one
    return static_cast<double>(day * 86400 + part(11, 2, 0, 23) * 3600 + part(14, 2, 0, 59) * 60) + seconds;
}

void read_azure(Reader& reader, Trace& trace) {
    trace.format = "azure";
    std::string_view line;
    while (reader.next(line)) {
        TraceArrival a;
        a.at_s = stamp_seconds(reader, reader.field(line));
        a.input_tokens = reader.tokens(reader.field(line));
        a.output_tokens = reader.tokens(reader.field(line));
        reader.end_of_line(line);
        trace.arrivals.push_back(std::move(a));
    }
}

void read_csv(Reader& reader, Trace& trace) {
    trace.format = "csv";
    std::string_view line;
    while (reader.next(line)) {
        TraceArrival a;
        a.at_s = reader.seconds(reader.field(line));
        a.tenant = std::string(reader.field(line));
        a.input_tokens = reader.tokens(reader.field(line));
        a.output_tokens = reader.tokens(reader.field(line));
        reader.end_of_line(line);
        trace.arrivals.push_back(std::move(a));
    }
}

double json_number(const Reader& reader, const boost::json::object& object, const char* key, double most) {
    const boost::json::value* value = object.if_contains(key);
    boost::system::error_code ec;
    const double number = value == nullptr ? -1 : value->to_number<double>(ec);
    if (value == nullptr || ec || !std::isfinite(number) || number < 0) {
        reader.fail(std::string("a number of 0 or more expected at \"") + key + "\"");
    }
    if (number > most) reader.fail(std::string("\"") + key + "\" is over " + std::to_string(static_cast<int64_t>(most)));
    return number;
}

int64_t json_tokens(const Reader& reader, const boost::json::object& object, const char* key) {
    const double number = json_number(reader, object, key, static_cast<double>(kMostTokens));
    if (number != std::floor(number)) reader.fail(std::string("a count of tokens expected at \"") + key + "\"");
    return static_cast<int64_t>(number);
}

void read_mooncake(Reader& reader, std::string_view line, Trace& trace) {
    trace.format = "mooncake";
    trace.is_batched = true;
    do {
        boost::system::error_code ec;
        const boost::json::value parsed = boost::json::parse(boost::json::string_view(line.data(), line.size()), ec);
        if (ec || !parsed.is_object()) reader.fail("a JSON object expected");
        const boost::json::object& object = parsed.get_object();
        TraceArrival a;
        a.at_s = json_number(reader, object, "timestamp", sim::kMostSeconds * 1e3) * 1e-3;
        a.input_tokens = json_tokens(reader, object, "input_length");
        a.output_tokens = json_tokens(reader, object, "output_length");
        if (const boost::json::value* ids = object.if_contains("hash_ids")) {
            if (!ids->is_array()) reader.fail("an array expected at \"hash_ids\"");
            for (const boost::json::value& id : ids->get_array()) {
                const uint64_t number = id.to_number<uint64_t>(ec);
                if (ec) reader.fail("whole numbers expected in \"hash_ids\"");
                a.prefix_blocks.push_back(number);
            }
        }
        trace.arrivals.push_back(std::move(a));
    } while (reader.next(line));
}

}  // namespace

Trace parse_trace(const std::string& text, const std::string& name) {
    Trace trace;
    Reader reader(text, name);
    std::string_view line;
    if (!reader.next(line)) reader.fail("the trace is empty");
    if (line == "TIMESTAMP,ContextTokens,GeneratedTokens") {
        read_azure(reader, trace);
    } else if (line == "arrival_s,tenant,input_tokens,output_tokens") {
        read_csv(reader, trace);
    } else if (line.front() == '{') {
        read_mooncake(reader, line, trace);
    } else {
        reader.fail("\"" + std::string(line.substr(0, 60)) +
                    "\" found; expected TIMESTAMP,ContextTokens,GeneratedTokens or arrival_s,tenant,input_tokens,output_tokens "
                    "or a JSON object");
    }
    if (trace.arrivals.empty()) reader.fail("the trace has no arrival");
    std::stable_sort(trace.arrivals.begin(), trace.arrivals.end(),
                     [](const TraceArrival& a, const TraceArrival& b) { return a.at_s < b.at_s; });
    const double first = trace.arrivals.front().at_s;
    for (TraceArrival& a : trace.arrivals) a.at_s -= first;
    return trace;
}

Trace read_trace(const std::string& path) { return parse_trace(read_text_file(path), path); }

}  // namespace takt
