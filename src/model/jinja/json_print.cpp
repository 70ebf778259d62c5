// Python's json.dumps over template values. One render, one thread. See operations.h.
#include <algorithm>
#include <cmath>

#include "model/jinja/operations.h"
#include "model/unicode.h"

namespace takt::jinja {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";

void append_u16(std::string& out, uint32_t unit) {
    out += "\\u";
    for (int i = 3; i >= 0; --i) out.push_back(kHex[(unit >> (4 * i)) & 0xFU]);
}

std::string json_string(std::string_view text, bool ensure_ascii) {
    std::string out = "\"";
    for (size_t i = 0; i < text.size();) {
        const DecodedCharacter c = decode_utf8(text, i);
        constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
        const size_t simple = kFrom.find(text[i]);
        if (simple != std::string_view::npos) {
            out.push_back('\\');
            out.push_back(kTo[simple]);
        } else if (c.code_point < 0x20) {
            append_u16(out, c.code_point);
        } else if (c.code_point < 0x80 || !ensure_ascii) {
            out.append(text, i, c.size);
        } else if (c.code_point < 0x10000) {
            append_u16(out, c.code_point);
        } else {
            append_u16(out, 0xD800 + ((c.code_point - 0x10000) >> 10));
            append_u16(out, 0xDC00 + ((c.code_point - 0x10000) & 0x3FFU));
        }
        i += c.size;
    }
    out.push_back('"');
    return out;
}

std::string json_number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return number_text(value);
}

class JsonWriter {
public:
    JsonWriter(Machine& machine, const JsonStyle& style) : machine_(machine), style_(style) {}

    void write(const Value& value, int level) {
        if (!machine_.spend(1)) return;
        if (const Text* text = value.as_text()) {
            add(json_string(text->bytes(), style_.ensure_ascii), text->has_message_bytes());
        } else if (const List* list = value.as_list()) {
            write_list(*list, level);
        } else if (const Dict* dict = value.as_dict()) {
            write_dict(*dict, level);
        } else if (!write_plain(value)) {
            if (value.is_undefined()) machine_.fail_undefined(value);
            machine_.fail_type("Object of type " + std::string(type_name(value)) + " is not JSON serializable");
        }
    }

    Text out;

private:
    void add(std::string_view bytes, bool from_message = false) {
        if (machine_.spend_bytes(bytes.size())) out.append(bytes, from_message);
    }

    bool write_plain(const Value& value) {
        if (value.is_none())
            add("null");
        else if (const bool* b = value.as_bool())
            add(*b ? "true" : "false");
        else if (const int64_t* i = value.as_integer())
            add(std::to_string(*i));
        else if (const double* d = value.as_number())
            add(json_number(*d));
        else
            return false;
        return true;
    }

    void new_line(int level) {
        if (style_.indent < 0) return;
        add("\n");
        add(std::string(static_cast<size_t>(style_.indent) * static_cast<size_t>(level), ' '));
    }

    void separate(bool first, int level) {
        if (!first) add(style_.item_separator);
        new_line(level);
    }

    void write_list(const List& list, int level) {
        if (list.items.empty()) return add("[]");
        add("[");
        for (size_t i = 0; i < list.items.size() && !machine_.failed(); ++i) {
            separate(i == 0, level + 1);
            write(list.items[i], level + 1);
        }
        new_line(level);
        add("]");
    }

    void write_key(const Value& key) {
        if (const Text* text = key.as_text())
            return add(json_string(text->bytes(), style_.ensure_ascii), text->has_message_bytes());
        add("\"");
        if (!write_plain(key)) machine_.fail_type("keys must be str, int, float, bool or None");
        add("\"");
    }

    void write_dict(const Dict& dict, int level) {
        if (dict.entries.empty()) return add("{}");
        std::vector<const std::pair<Value, Value>*> entries;
        for (const auto& entry : dict.entries) entries.push_back(&entry);
        if (style_.sort_keys) {
            machine_.spend(entries.size());
            std::stable_sort(entries.begin(), entries.end(), [this](const auto* a, const auto* b) {
                return !machine_.failed() && compare(machine_, a->first, b->first).value_or(0) < 0;
            });
        }
        add("{");
        for (size_t i = 0; i < entries.size() && !machine_.failed(); ++i) {
            separate(i == 0, level + 1);
            write_key(entries[i]->first);
            add(style_.key_separator);
            write(entries[i]->second, level + 1);
        }
        new_line(level);
        add("}");
    }

    Machine& machine_;
    const JsonStyle& style_;
};

}  // namespace

Value json_text(Machine& machine, const Value& value, const JsonStyle& style) {
    JsonWriter writer(machine, style);
    writer.write(value, 0);
    return machine.failed() ? Value{} : machine.make_text(std::move(writer.out));
}

}  // namespace takt::jinja
