// Python's two kinds of text formatting, as far as templates use them. One render, one thread. See text_functions.h.
#include <array>
#include <charconv>

#include "model/jinja/operations.h"
#include "model/jinja/text_functions.h"

namespace takt::jinja {
namespace {

/// One %-conversion: its letter, its precision (-1: none) and where it ends. Flags and widths are not taken.
struct Conversion {
    char letter;
    int precision;
    size_t end;
};

std::optional<Conversion> read_conversion(std::string_view pattern, size_t percent) {
    Conversion out{'\0', -1, percent + 1};
    if (out.end < pattern.size() && pattern[out.end] == '.') {
        out.precision = 0;
        for (++out.end; out.end < pattern.size() && pattern[out.end] >= '0' && pattern[out.end] <= '9'; ++out.end) {
            out.precision = std::min(out.precision * 10 + (pattern[out.end] - '0'), 100);
        }
    }
    if (out.end >= pattern.size()) return std::nullopt;
    out.letter = pattern[out.end++];
    return out;
}

std::string fixed_text(double value, int precision) {
    // 309 digits before the point at most, and 100 behind it.
    std::array<char, 512> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed,
                                   precision < 0 ? 6 : precision)
                         .ptr;
    return {digits.data(), end};
}

void append_conversion(Machine& machine, const Conversion& conversion, const Value& value, Text& out) {
    switch (conversion.letter) {
        case 's': out.append(text_of(machine, value)); return;
        case 'r': out.append(written_form(machine, value)); return;
        case 'd':
        case 'i':
            if (!value.is_numeric()) {
                machine.fail_type("%d format: a real number is required, not " + std::string(type_name(value)));
                return;
            }
            if (value.as_number() != nullptr) {
                const double number = *value.as_number();
                if (!(number > -9.2e18 && number < 9.2e18)) {
                    machine.fail_type("%d format: a number of over 64 bits");
                    return;
                }
                out.append(std::to_string(static_cast<int64_t>(number)), false);
                return;
            }
            out.append(std::to_string(value.whole()), false);
            return;
        case 'f':
            if (!value.is_numeric()) {
                machine.fail_type("must be real number, not " + std::string(type_name(value)));
                return;
            }
            out.append(fixed_text(value.real(), conversion.precision), false);
            return;
        default: machine.fail_type(std::string("format %") + conversion.letter + " is not available in this version");
    }
}

}  // namespace

Value percent_format(Machine& machine, const Text& pattern, const Arguments& arguments) {
    const std::string& bytes = pattern.bytes();
    Text out;
    size_t done = 0;
    size_t used = 0;
    for (size_t at = bytes.find('%'); at != std::string::npos && !machine.failed(); at = bytes.find('%', done)) {
        out.append(pattern, done, at);
        const auto conversion = read_conversion(bytes, at);
        if (!conversion) return machine.fail_type("incomplete format");
        done = conversion->end;
        if (conversion->letter == '%') {
            out.append(pattern, at, at + 1);
            continue;
        }
        if (used >= arguments.positional.size()) return machine.fail_type("not enough arguments for format string");
        const size_t before = out.size();
        append_conversion(machine, *conversion, arguments.positional[used++], out);
        machine.spend_bytes(out.size() - before);
    }
    if (used < arguments.positional.size())
        return machine.fail_type("not all arguments converted during string formatting");
    out.append(pattern, done, bytes.size());
    return machine.make_text(std::move(out));
}

Value brace_format(Machine& machine, const Text& pattern, const Arguments& arguments) {
    const std::string& bytes = pattern.bytes();
    Text out;
    size_t automatic = 0;
    for (size_t i = 0; i < bytes.size() && !machine.failed();) {
        const size_t brace = bytes.find_first_of("{}", i);
        out.append(pattern, i, std::min(brace, bytes.size()));
        if (brace == std::string::npos) break;
        if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {  // {{ and }}
            out.append(pattern, brace, brace + 1);
            i = brace + 2;
            continue;
        }
        const size_t close = bytes.find('}', brace);
        if (bytes[brace] == '}' || close == std::string::npos)
            return machine.fail_type("a single brace in a format string");
        const std::string field = bytes.substr(brace + 1, close - brace - 1);
        if (field.find_first_of(":!.[{") != std::string::npos) {
            return machine.fail_type("format field {" + field + "} is not available in this version");
        }
        const bool numbered =
            !field.empty() && field.size() < 6 && field.find_first_not_of("0123456789") == std::string::npos;
        const size_t index = numbered ? static_cast<size_t>(std::stol(field)) : automatic;
        if (field.empty()) ++automatic;
        const bool positional = (field.empty() || numbered) && index < arguments.positional.size();
        const Value* value = positional ? &arguments.positional[index] : arguments.find(field);
        if (value == nullptr) return machine.fail_type("no argument for format field {" + field + "}");
        const Text printed = text_of(machine, *value);
        if (!machine.spend_bytes(printed.size())) return {};
        out.append(printed);
        i = close + 1;
    }
    return machine.make_text(std::move(out));
}

}  // namespace takt::jinja
