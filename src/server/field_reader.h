// FieldReader: takes named fields out of a JSON object with their bounds and says what was wrong with the first bad one.
// Pure; one thread at a time. Shared by the native frames and the OpenAI bodies; knows neither.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace takt::server {

/// Parses one JSON document: UTF-8 checked, at most 64 levels deep. On failure `value` is null and `problem` says why.
struct ParsedJson {
    boost::json::value value;
    std::string problem;
};
ParsedJson parse_json(std::string_view text);

/// Reads fields; a field given as null counts as absent. After the first problem every getter returns an empty optional.
class FieldReader {
public:
    /// `object` must outlive the reader.
    explicit FieldReader(const boost::json::object& object) : object_(object) {}

    /// The raw value, or nullptr if absent or null. Marks the name as known.
    const boost::json::value* find(std::string_view name);
    std::optional<std::string> string(std::string_view name);
    std::optional<bool> boolean(std::string_view name);
    std::optional<std::int64_t> integer(std::string_view name, std::int64_t low, std::int64_t high);
    std::optional<double> number(std::string_view name, double low, double high);
    /// Above `low`, up to `high`.
    std::optional<double> number_above(std::string_view name, double low, double high);
    const boost::json::array* array(std::string_view name);
    const boost::json::object* object(std::string_view name);

    /// Makes every field that nobody asked for a problem.
    void refuse_unknown();
    /// Records a problem unless there is one already.
    void fail(std::string_view name, std::string message);
    /// The same with the problem and the field of a reader of a part.
    void fail_as(const FieldReader& other);
    /// The same for something that the contract knows and this version has not.
    void not_available(std::string_view name);

    [[nodiscard]] bool ok() const { return problem_.empty(); }
    [[nodiscard]] const std::string& problem() const { return problem_; }
    /// The field the problem is about.
    [[nodiscard]] const std::string& param() const { return param_; }

private:
    const boost::json::object& object_;
    std::set<std::string, std::less<>> known_;
    std::string problem_;
    std::string param_;
};

/// A short text of a value for messages: at most 40 bytes of its JSON.
std::string shown(const boost::json::value& value);
/// An integer if the value is one (5.0 counts), within int64.
std::optional<std::int64_t> as_integer(const boost::json::value& value);
/// The number without trailing zeros: `2`, `0.5`.
std::string shown(double value);

}  // namespace takt::server
