// How values print: Python's str() and repr(). One render, one thread. See operations.h.
#include <array>
#include <charconv>
#include <cmath>

#include "model/jinja/operations.h"
#include "model/unicode.h"

namespace takt::jinja {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";

/// Characters that Python's repr writes as an escape; the ranges cover controls, separators, marks of direction and
/// private use.
bool is_printable(char32_t cp) {
    constexpr std::array<std::pair<char32_t, char32_t>, 12> kHidden{{{0x00, 0x1F},
                                                                     {0x7F, 0xA0},
                                                                     {0xAD, 0xAD},
                                                                     {0x1680, 0x1680},
                                                                     {0x2000, 0x200F},
                                                                     {0x2028, 0x202F},
                                                                     {0x205F, 0x206F},
                                                                     {0x3000, 0x3000},
                                                                     {0xE000, 0xF8FF},
                                                                     {0xFEFF, 0xFEFF},
                                                                     {0xFFF0, 0xFFFB},
                                                                     {0xE0000, 0x10FFFF}}};
    for (const auto& [first, last] : kHidden) {
        if (cp >= first && cp <= last) return false;
    }
    return true;
}

void append_escape(std::string& out, char32_t cp) {
    const int digits = cp < 0x100 ? 2 : cp < 0x10000 ? 4 : 8;
    out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
    for (int i = digits - 1; i >= 0; --i) out.push_back(kHex[(cp >> (4 * i)) & 0xFU]);
}

std::string quoted(std::string_view text) {
    const bool has_single = text.find('\'') != std::string_view::npos;
    const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
    std::string out(1, quote);
    for (size_t i = 0; i < text.size();) {
        const DecodedCharacter c = decode_utf8(text, i);
        const char byte = text[i];
        if (byte == quote || byte == '\\') {
            out.push_back('\\');
            out.push_back(byte);
        } else if (byte == '\n') {
            out += "\\n";
        } else if (byte == '\r') {
            out += "\\r";
        } else if (byte == '\t') {
            out += "\\t";
        } else if (is_printable(c.code_point)) {
            out.append(text, i, c.size);
        } else {
            append_escape(out, c.code_point);
        }
        i += c.size;
    }
    out.push_back(quote);
    return out;
}

/// Writes values as Python's repr; `machine` bounds the work over shared parts.
class Writer {
public:
    explicit Writer(Machine& machine) : machine_(machine) {}

    void write(const Value& value) {
        if (!machine_.spend(1)) return;
        if (const Text* text = value.as_text()) {
            add(quoted(text->bytes()), text->has_message_bytes());
        } else if (const List* list = value.as_list()) {
            write_list(*list);
        } else if (const Dict* dict = value.as_dict()) {
            write_entries(*dict);
        } else if (value.as_namespace() != nullptr) {
            add("<Namespace>");
        } else if (value.as_loop() != nullptr) {
            add("<LoopContext>");
        } else if (const Callable* callable = value.as_callable()) {
            add("<function " + callable->name + ">");
        } else {
            write_plain(value);
        }
    }

    Text out;

private:
    void add(std::string_view bytes, bool from_message = false) {
        if (machine_.spend_bytes(bytes.size())) out.append(bytes, from_message);
    }

    void write_plain(const Value& value) {
        if (value.is_undefined()) return add("Undefined");
        if (value.is_none()) return add("None");
        if (const bool* b = value.as_bool()) return add(*b ? "True" : "False");
        if (const int64_t* i = value.as_integer()) return add(std::to_string(*i));
        if (const double* d = value.as_number()) add(number_text(*d));
    }

    void write_list(const List& list) {
        add(list.is_tuple ? "(" : "[");
        for (size_t i = 0; i < list.items.size() && !machine_.failed(); ++i) {
            if (i > 0) add(", ");
            write(list.items[i]);
        }
        if (list.is_tuple && list.items.size() == 1) add(",");
        add(list.is_tuple ? ")" : "]");
    }

    void write_entries(const Dict& dict) {
        add("{");
        bool first = true;
        for (const auto& [key, value] : dict.entries) {
            if (machine_.failed()) return;
            if (!first) add(", ");
            first = false;
            write(key);
            add(": ");
            write(value);
        }
        add("}");
    }

    Machine& machine_;
};

}  // namespace

std::string number_text(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    std::array<char, 64> digits{};
    // The shortest digits that read back as the same number, as Python's repr; the exponent form from 1e16 and below
    // 1e-4.
    const double magnitude = std::fabs(value);
    const bool plain = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
    const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, format).ptr;
    std::string out(digits.data(), end);
    if (plain && out.find('.') == std::string::npos) out += ".0";
    return out;
}

Text written_form(Machine& machine, const Value& value) {
    Writer writer(machine);
    writer.write(value);
    return std::move(writer.out);
}

Text text_of(Machine& machine, const Value& value) {
    if (value.is_undefined()) return Text{};
    if (const Text* text = value.as_text()) return *text;
    return written_form(machine, value);
}

}  // namespace takt::jinja
