// Boost.JSON values to template values. One render, one thread. See json_read.h.
#include "model/jinja/json_read.h"

#include <boost/json.hpp>

namespace takt::jinja {
namespace {

namespace json = boost::json;

Value convert(Machine& machine, const json::value& value, uint32_t depth) {
    if (depth > kMaxNesting) return machine.fail(FailureKind::limit, "JSON nested more than 64 deep");
    switch (value.kind()) {
        case json::kind::null: return Value::none();
        case json::kind::bool_: return Value::boolean(value.get_bool());
        case json::kind::int64: return Value::integer(value.get_int64());
        case json::kind::uint64: {
            const uint64_t number = value.get_uint64();
            const bool fits = number <= static_cast<uint64_t>(INT64_MAX);
            return fits ? Value::integer(static_cast<int64_t>(number)) : Value::number(static_cast<double>(number));
        }
        case json::kind::double_: return Value::number(value.get_double());
        case json::kind::string: return machine.make_text({value.get_string().data(), value.get_string().size()}, true);
        case json::kind::array: {
            std::vector<Value> items;
            items.reserve(value.get_array().size());
            for (const json::value& item : value.get_array()) items.push_back(convert(machine, item, depth + 1));
            return machine.make_list(std::move(items));
        }
        case json::kind::object: {
            std::vector<std::pair<Value, Value>> entries;
            entries.reserve(value.get_object().size());
            for (const auto& [key, item] : value.get_object()) {
                Value name = machine.make_text({key.data(), key.size()}, true);
                entries.emplace_back(std::move(name), convert(machine, item, depth + 1));
            }
            return machine.make_dict(std::move(entries));
        }
    }
    return {};
}

}  // namespace

Value value_of_json(Machine& machine, const json::value& value) { return convert(machine, value, 0); }

Value read_json_text(Machine& machine, const Text& text) {
    if (!machine.spend_bytes(text.size() * 4)) return {};
    json::error_code failure;
    const json::value parsed = json::parse(json::string_view(text.bytes().data(), text.size()), failure);
    if (failure) return machine.fail_type("from_json: not valid JSON: " + failure.message());
    return value_of_json(machine, parsed);
}

}  // namespace takt::jinja
