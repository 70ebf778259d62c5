// Global functions, and the methods of lists, dictionaries and loops. One render, one thread. See functions.h.
#include <algorithm>
#include <array>

#include "model/jinja/functions.h"
#include "model/jinja/operations.h"
#include "model/jinja/text_functions.h"

namespace takt::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same bound

Value global_raise(Machine& machine, const Value&, const Arguments& arguments) {
    const Value* message = arguments.get(0, "message");
    return machine.fail(FailureKind::raised,
                        message == nullptr ? "the template raised an exception" : text_of(machine, *message).bytes());
}

Value global_namespace(Machine& machine, const Value&, const Arguments& arguments) {
    std::vector<std::pair<std::string, Value>> attributes;
    for (const Value& value : arguments.positional) {
        const Dict* dict = value.as_dict();
        if (dict == nullptr) return machine.fail_type("namespace takes mappings and named values");
        for (const auto& [key, item] : dict->entries) {
            if (key.as_text() != nullptr) attributes.emplace_back(key.as_text()->bytes(), item);
        }
    }
    for (const auto& [name, value] : arguments.named) attributes.emplace_back(name, value);
    return machine.make_namespace(std::move(attributes));
}

Value global_dict(Machine& machine, const Value&, const Arguments& arguments) {
    std::vector<std::pair<Value, Value>> entries;
    for (const Value& value : arguments.positional) {
        const Dict* dict = value.as_dict();
        if (dict == nullptr) return machine.fail_type("dict takes mappings and named values in this version");
        entries.insert(entries.end(), dict->entries.begin(), dict->entries.end());
    }
    for (const auto& [name, value] : arguments.named) {
        if (!machine.spend(entries.size())) return {};
        const auto known = std::find_if(entries.begin(), entries.end(), [&key = name](const auto& entry) {
            return entry.first.as_text() != nullptr && entry.first.as_text()->bytes() == key;
        });
        if (known != entries.end()) {
            known->second = value;
        } else {
            entries.emplace_back(Value::text(name), value);
        }
    }
    return machine.make_dict(std::move(entries));
}

Value global_range(Machine& machine, const Value&, const Arguments& arguments) {
    const size_t count = arguments.positional.size();
    if (count < 1 || count > 3) return machine.fail_type("range takes one to three whole numbers");
    const int64_t first = integer_argument(machine, arguments, 0, "start", 0);
    const int64_t second = integer_argument(machine, arguments, 1, "stop", 0);
    const int64_t step = integer_argument(machine, arguments, 2, "step", 1);
    if (step == 0) return machine.fail_type("range() arg 3 must not be zero");
    if (machine.failed()) return {};
    const int64_t start = count == 1 ? 0 : first;
    const int64_t stop = count == 1 ? first : second;
    std::vector<Value> items;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (static_cast<int64_t>(items.size()) >= kMaxRange) {
            return machine.fail(FailureKind::limit, "range too big, at most 100,000 numbers are allowed");
        }
        items.push_back(Value::integer(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return machine.make_list(std::move(items));
}

/// Calendar date and time of a count of seconds since 1970, UTC.
struct Calendar {
    int64_t year;
    int month, day, hour, minute, second, weekday, day_of_year;  // month and day from 1, weekday 0 is Monday
};

Calendar calendar_of(int64_t seconds) {
    int64_t days = seconds / 86400;
    int64_t rest = seconds % 86400;
    if (rest < 0) {
        rest += 86400;
        --days;
    }
    Calendar out{};
    out.hour = static_cast<int>(rest / 3600);
    out.minute = static_cast<int>(rest / 60 % 60);
    out.second = static_cast<int>(rest % 60);
    out.weekday = static_cast<int>(((days + 3) % 7 + 7) % 7);
    // Years of 400 begin on 1 March, so that the leap day is the last of a year.
    const int64_t shifted = days + 719468;
    const int64_t era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    const int64_t day_of_era = shifted - era * 146097;
    const int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    const int64_t day_of_march_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    const int64_t march_month = (5 * day_of_march_year + 2) / 153;
    out.day = static_cast<int>(day_of_march_year - (153 * march_month + 2) / 5 + 1);
    out.month = static_cast<int>(march_month < 10 ? march_month + 3 : march_month - 9);
    out.year = year_of_era + era * 400 + (out.month <= 2 ? 1 : 0);
    const bool leap = (out.year % 4 == 0 && out.year % 100 != 0) || out.year % 400 == 0;
    constexpr std::array<int, 12> kBefore{0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    out.day_of_year = kBefore[static_cast<size_t>(out.month - 1)] + out.day + (leap && out.month > 2 ? 1 : 0);
    return out;
}

std::string padded(int64_t number, size_t width) {
    const std::string digits = std::to_string(number);
    return digits.size() < width ? std::string(width - digits.size(), '0') + digits : digits;
}

/// One strftime conversion in the C locale, or nothing if it is not known.
std::optional<std::string> calendar_field(const Calendar& at, char letter) {
    constexpr std::array<std::string_view, 12> kMonths{"January",   "February", "March",    "April",
                                                       "May",       "June",     "July",     "August",
                                                       "September", "October",  "November", "December"};
    constexpr std::array<std::string_view, 7> kDays{"Monday", "Tuesday",  "Wednesday", "Thursday",
                                                    "Friday", "Saturday", "Sunday"};
    const std::string_view month = kMonths[static_cast<size_t>(at.month - 1)];
    const std::string_view day = kDays[static_cast<size_t>(at.weekday)];
    const int hour12 = at.hour % 12 == 0 ? 12 : at.hour % 12;
    switch (letter) {
        case 'Y': return std::to_string(at.year);
        case 'y': return padded(at.year % 100, 2);
        case 'm': return padded(at.month, 2);
        case 'd': return padded(at.day, 2);
        case 'e': return (at.day < 10 ? " " : "") + std::to_string(at.day);
        case 'H': return padded(at.hour, 2);
        case 'I': return padded(hour12, 2);
        case 'M': return padded(at.minute, 2);
        case 'S': return padded(at.second, 2);
        case 'p': return at.hour < 12 ? "AM" : "PM";
        case 'j': return padded(at.day_of_year, 3);
        case 'B': return std::string(month);
        case 'b':
        case 'h': return std::string(month.substr(0, 3));
        case 'A': return std::string(day);
        case 'a': return std::string(day.substr(0, 3));
        case 'F': return std::to_string(at.year) + "-" + padded(at.month, 2) + "-" + padded(at.day, 2);
        case 'T': return padded(at.hour, 2) + ":" + padded(at.minute, 2) + ":" + padded(at.second, 2);
        case 'Z': return "UTC";
        case 'z': return "+0000";
        case '%': return "%";
        default: return std::nullopt;
    }
}

Value global_strftime(Machine& machine, const Value&, const Arguments& arguments) {
    const Text* format = text_argument(machine, arguments, 0, "format");
    if (format == nullptr) return {};
    const Calendar now = calendar_of(machine.now_s());
    const std::string& bytes = format->bytes();
    std::string out;
    for (size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] != '%' || i + 1 >= bytes.size()) {
            out.push_back(bytes[i]);
            continue;
        }
        const bool unpadded = bytes[i + 1] == '-' && i + 2 < bytes.size();
        i += unpadded ? 2 : 1;
        auto field = calendar_field(now, bytes[i]);
        if (!field)
            return machine.fail_type(std::string("strftime_now: %") + bytes[i] + " is not available in this version");
        if (unpadded) field->erase(0, std::min(field->find_first_not_of("0 "), field->size() - 1));
        out += *field;
    }
    return machine.make_text(out, format->has_message_bytes());
}

Value dict_pairs(Machine& machine, const Value& self, const Arguments&) {
    return find_sequence_filter("items")(machine, self, {});
}

Value dict_keys(Machine& machine, const Value& self, const Arguments&) {
    const auto items = items_of(machine, self);
    return items == nullptr ? Value{} : machine.make_list(items->items);
}

Value dict_values(Machine& machine, const Value& self, const Arguments&) {
    std::vector<Value> items;
    for (const auto& [key, value] : self.as_dict()->entries) items.push_back(value);
    return machine.make_list(std::move(items));
}

Value dict_get(Machine& machine, const Value& self, const Arguments& arguments) {
    const Value* key = arguments.get(0, "key");
    const Value* fallback = arguments.get(1, "default");
    if (key == nullptr) return machine.fail_type("get expected at least 1 argument, got 0");
    for (const auto& [name, value] : self.as_dict()->entries) {
        if (is_equal(machine, name, *key)) return value;
    }
    return fallback == nullptr ? Value::none() : *fallback;
}

Value container_copy(Machine&, const Value& self, const Arguments&) { return self; }

Value list_index(Machine& machine, const Value& self, const Arguments& arguments) {
    if (arguments.positional.size() != 1) return machine.fail_type("index takes one argument in this version");
    const auto& items = self.as_list()->items;
    for (size_t i = 0; i < items.size(); ++i) {
        if (is_equal(machine, items[i], arguments.positional[0])) return Value::integer(static_cast<int64_t>(i));
    }
    return machine.fail_type("the value is not in the list");
}

Value list_count(Machine& machine, const Value& self, const Arguments& arguments) {
    if (arguments.positional.size() != 1) return machine.fail_type("count takes one argument");
    int64_t count = 0;
    for (const Value& item : self.as_list()->items) count += is_equal(machine, item, arguments.positional[0]) ? 1 : 0;
    return Value::integer(count);
}

Value loop_cycle(Machine& machine, const Value& self, const Arguments& arguments) {
    if (arguments.positional.empty()) return machine.fail_type("no items for cycling given");
    return arguments.positional[self.as_loop()->index0 % arguments.positional.size()];
}

Value loop_changed(Machine& machine, const Value& self, const Arguments& arguments) {
    const Value seen = machine.make_list(arguments.positional, true);
    const std::string now = written_form(machine, seen).bytes();
    Loop& loop = *self.as_loop();
    const bool changed = !loop.has_changed_before || loop.last_changed != now;
    loop.has_changed_before = true;
    loop.last_changed = now;
    return Value::boolean(changed);
}

constexpr NamedFunction kGlobals[] = {
    {"dict", global_dict},   {"namespace", global_namespace},   {"raise_exception", global_raise},
    {"range", global_range}, {"strftime_now", global_strftime},
};
constexpr NamedFunction kDictMethods[] = {
    {"copy", container_copy}, {"get", dict_get}, {"items", dict_pairs}, {"keys", dict_keys}, {"values", dict_values},
};
constexpr NamedFunction kListMethods[] = {{"copy", container_copy}, {"count", list_count}, {"index", list_index}};
constexpr NamedFunction kLoopMethods[] = {{"changed", loop_changed}, {"cycle", loop_cycle}};

}  // namespace

Function find_global(std::string_view name) { return find_in(kGlobals, name); }
Function find_list_method(std::string_view name) { return find_in(kListMethods, name); }
Function find_dict_method(std::string_view name) { return find_in(kDictMethods, name); }
Function find_loop_method(std::string_view name) { return find_in(kLoopMethods, name); }

bool is_mutating_method(const Value& value, std::string_view name) {
    constexpr std::array<std::string_view, 6> kDictChanges{"clear",      "pop",    "popitem",
                                                           "setdefault", "update", "fromkeys"};
    constexpr std::array<std::string_view, 8> kListChanges{"append", "clear",  "extend",  "insert",
                                                           "pop",    "remove", "reverse", "sort"};
    if (value.as_dict() != nullptr)
        return std::find(kDictChanges.begin(), kDictChanges.end(), name) != kDictChanges.end();
    const List* list = value.as_list();
    if (list == nullptr || list->is_tuple) return false;
    return std::find(kListChanges.begin(), kListChanges.end(), name) != kListChanges.end();
}

}  // namespace takt::jinja
