// Filters over texts and numbers. One render, one thread. See functions.h.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "model/jinja/functions.h"
#include "model/jinja/json_read.h"
#include "model/jinja/operations.h"
#include "model/jinja/text_functions.h"
#include "model/unicode.h"

namespace takt::jinja {
namespace {

Value filter_trim(Machine& machine, const Value& self, const Arguments& arguments) {
    const Text* characters = optional_text(machine, arguments, 0, "chars");
    return machine.make_text(
        stripped(text_of(machine, self), characters == nullptr ? nullptr : &characters->bytes(), true, true));
}
Value filter_upper(Machine& machine, const Value& self, const Arguments&) {
    return machine.make_text(uppercase(text_of(machine, self)));
}
Value filter_lower(Machine& machine, const Value& self, const Arguments&) {
    return machine.make_text(lowercase(text_of(machine, self)));
}
Value filter_capitalize(Machine& machine, const Value& self, const Arguments&) {
    return machine.make_text(capitalised(text_of(machine, self)));
}
Value filter_title(Machine& machine, const Value& self, const Arguments&) {
    return machine.make_text(titled(text_of(machine, self), false));
}
Value filter_string(Machine& machine, const Value& self, const Arguments&) {
    return machine.make_text(text_of(machine, self));
}

Value filter_escape(Machine& machine, const Value& self, const Arguments&) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kEscapes{
        {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}}};
    Text out = text_of(machine, self);
    // What stands for a message's character is the message's too.
    const bool from_message = out.has_message_bytes();
    for (const auto& [from, to] : kEscapes) out = replaced(machine, out, from, Text(std::string(to), from_message), -1);
    return machine.make_text(std::move(out));
}

Value filter_replace(Machine& machine, const Value& self, const Arguments& arguments) {
    const Value* from = arguments.get(0, "old");
    const Value* to = arguments.get(1, "new");
    if (from == nullptr || to == nullptr) return machine.fail_type("replace takes an old and a new text");
    const Text old_text = text_of(machine, *from);
    const Text new_text = text_of(machine, *to);
    const int64_t limit = integer_argument(machine, arguments, 2, "count", -1);
    return machine.make_text(replaced(machine, text_of(machine, self), old_text.bytes(), new_text, limit));
}

Value filter_indent(Machine& machine, const Value& self, const Arguments& arguments) {
    const Value* width = arguments.get(0, "width");
    Text indention;
    if (width != nullptr && width->as_text() != nullptr) {
        indention = *width->as_text();
    } else {
        const int64_t count = integer_argument(machine, arguments, 0, "width", 4);
        if (count > 1000) return machine.fail_type("indent: a width of over 1000");
        indention = Text(std::string(static_cast<size_t>(std::max<int64_t>(count, 0)), ' '));
    }
    const bool first = flag_argument(arguments, 1, "first", false);
    const bool blank = flag_argument(arguments, 2, "blank", false);
    Text source = text_of(machine, self);
    source.append("\n", false);
    const std::vector<Text> lines = split_lines(source, false);
    Text out;
    for (size_t i = 0; i < lines.size(); ++i) {
        if (!machine.spend_bytes(lines[i].size() + indention.size() + 1)) return {};
        if (i > 0) out.append("\n", false);
        const bool indented = i == 0 ? first : blank || !lines[i].empty();
        if (indented) out.append(indention);
        out.append(lines[i]);
    }
    return machine.make_text(std::move(out));
}

Value filter_format(Machine& machine, const Value& self, const Arguments& arguments) {
    return percent_format(machine, text_of(machine, self), arguments);
}

Value filter_wordcount(Machine& machine, const Value& self, const Arguments&) {
    const Text text = text_of(machine, self);
    int64_t count = 0;
    bool inside = false;
    for (size_t i = 0; i < text.size();) {
        const DecodedCharacter c = decode_utf8(text.bytes(), i);
        const CharacterClass kind = character_class(c.code_point);
        const bool word = kind == CharacterClass::letter || kind == CharacterClass::number || c.code_point == '_';
        count += word && !inside ? 1 : 0;
        inside = word;
        i += c.size;
    }
    return Value::integer(count);
}

/// float(text) as Python reads it; nothing if it is none.
std::optional<double> read_number(const Text& text) {
    std::string bytes = stripped(text, nullptr, true, true).bytes();
    if (bytes.starts_with('+')) bytes.erase(0, 1);
    double value = 0;
    const auto [end, code] = std::from_chars(bytes.data(), bytes.data() + bytes.size(), value);
    if (bytes.empty() || end != bytes.data() + bytes.size()) return std::nullopt;
    if (code == std::errc::result_out_of_range) return std::strtod(bytes.c_str(), nullptr);  // infinity or zero, as in Python
    return code == std::errc{} ? std::optional(value) : std::nullopt;
}

Value filter_int(Machine& machine, const Value& self, const Arguments& arguments) {
    const Value* given = arguments.get(0, "default");
    const Value fallback = given == nullptr ? Value::integer(0) : *given;
    const int64_t base = integer_argument(machine, arguments, 1, "base", 10);
    if (base < 2 || base > 36) return machine.fail_type("int: a base outside 2 to 36");
    double number = 0;
    if (const Text* text = self.as_text()) {
        std::string bytes = stripped(*text, nullptr, true, true).bytes();
        if (bytes.starts_with('+')) bytes.erase(0, 1);
        int64_t whole = 0;
        const auto [end, code] =
            std::from_chars(bytes.data(), bytes.data() + bytes.size(), whole, static_cast<int>(base));
        if (!bytes.empty() && code == std::errc{} && end == bytes.data() + bytes.size()) return Value::integer(whole);
        if (code == std::errc::result_out_of_range) return machine.fail_type("int: an integer of over 64 bits");
        const auto read = read_number(*text);
        if (!read) return fallback;
        number = *read;
    } else if (self.is_numeric()) {
        if (self.as_number() == nullptr) return Value::integer(self.whole());
        number = *self.as_number();
    } else {
        return fallback;
    }
    if (!std::isfinite(number)) return fallback;
    if (!(number > -9.2e18 && number < 9.2e18)) return machine.fail_type("int: an integer of over 64 bits");
    return Value::integer(static_cast<int64_t>(number));
}

Value filter_float(Machine&, const Value& self, const Arguments& arguments) {
    const Value* given = arguments.get(0, "default");
    const Value fallback = given == nullptr ? Value::number(0) : *given;
    if (self.is_numeric()) return Value::number(self.real());
    const auto read = self.as_text() == nullptr ? std::nullopt : read_number(*self.as_text());
    return read ? Value::number(*read) : fallback;
}

Value filter_abs(Machine& machine, const Value& self, const Arguments&) {
    if (!self.is_numeric())
        return machine.fail_type("bad operand type for abs(): '" + std::string(type_name(self)) + "'");
    if (self.as_number() != nullptr) return Value::number(std::fabs(*self.as_number()));
    return self.whole() < 0 ? arithmetic(machine, "-", Value::integer(0), self) : Value::integer(self.whole());
}

Value filter_round(Machine& machine, const Value& self, const Arguments& arguments) {
    if (!self.is_numeric()) return machine.fail_type("round takes a number");
    const int64_t precision = integer_argument(machine, arguments, 0, "precision", 0);
    const Text* method = optional_text(machine, arguments, 1, "method");
    if (precision < -300 || precision > 300) return machine.fail_type("round: a precision outside -300 to 300");
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = self.real() * scale;
    const std::string name = method == nullptr ? "common" : method->bytes();
    if (name == "ceil") return Value::number(std::ceil(scaled) / scale);
    if (name == "floor") return Value::number(std::floor(scaled) / scale);
    if (name != "common") return machine.fail_type("method must be common, ceil or floor");
    return Value::number(std::nearbyint(scaled) / scale);
}

Value filter_tojson(Machine& machine, const Value& self, const Arguments& arguments) {
    JsonStyle style;
    style.ensure_ascii = flag_argument(arguments, 0, "ensure_ascii", false);
    const int64_t indent = integer_argument(machine, arguments, 1, "indent", -1);
    if (indent > 100) return machine.fail_type("tojson: an indent of over 100");
    style.indent = static_cast<int>(indent < 0 ? -1 : indent);
    if (style.indent >= 0) style.item_separator = ",";
    style.sort_keys = flag_argument(arguments, 3, "sort_keys", false);
    bool from_message = false;  // separators may come from anywhere
    const Value* separators = arguments.get(2, "separators");
    if (separators != nullptr && !separators->is_none()) {
        const List* pair = separators->as_list();
        const bool is_pair = pair != nullptr && pair->items.size() == 2 && pair->items[0].as_text() != nullptr &&
                             pair->items[1].as_text() != nullptr;
        if (!is_pair) return machine.fail_type("tojson: separators must be two strings");
        style.item_separator = pair->items[0].as_text()->bytes();
        style.key_separator = pair->items[1].as_text()->bytes();
        from_message = pair->items[0].as_text()->has_message_bytes() || pair->items[1].as_text()->has_message_bytes();
    }
    const Value out = json_text(machine, self, style);
    return from_message && out.as_text() != nullptr ? machine.make_text(out.as_text()->bytes(), true) : out;
}

Value filter_from_json(Machine& machine, const Value& self, const Arguments&) {
    const Text* text = self.as_text();
    if (text == nullptr) return machine.fail_type("from_json takes a string");
    return read_json_text(machine, *text);
}

Value filter_safe(Machine&, const Value& self, const Arguments&) { return self; }

constexpr NamedFunction kFilters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_capitalize},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"float", filter_float},
    {"format", filter_format},
    {"from_json", filter_from_json},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", filter_lower},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"upper", filter_upper},
    {"wordcount", filter_wordcount},
};

}  // namespace

Function find_text_filter(std::string_view name) { return find_in(kFilters, name); }

Function find_filter(std::string_view name) {
    const Function text_filter = find_text_filter(name);
    return text_filter != nullptr ? text_filter : find_sequence_filter(name);
}

}  // namespace takt::jinja
