// Methods of texts: Python's str. One render, one thread. See functions.h.
#include <algorithm>

#include "model/jinja/functions.h"
#include "model/jinja/operations.h"
#include "model/jinja/text_functions.h"
#include "model/unicode.h"

namespace takt::jinja {
namespace {

const Text& own(const Value& self) { return *self.as_text(); }

template <bool kLeft, bool kRight>
Value method_strip(Machine& machine, const Value& self, const Arguments& arguments) {
    const Text* characters = optional_text(machine, arguments, 0, "chars");
    return machine.make_text(
        stripped(own(self), characters == nullptr ? nullptr : &characters->bytes(), kLeft, kRight));
}

Value method_upper(Machine& machine, const Value& self, const Arguments&) {
    return machine.make_text(uppercase(own(self)));
}
Value method_lower(Machine& machine, const Value& self, const Arguments&) {
    return machine.make_text(lowercase(own(self)));
}
Value method_capitalize(Machine& machine, const Value& self, const Arguments&) {
    return machine.make_text(capitalised(own(self)));
}
Value method_title(Machine& machine, const Value& self, const Arguments&) {
    return machine.make_text(titled(own(self), true));
}

template <bool kAtEnd>
Value method_starts_or_ends(Machine& machine, const Value& self, const Arguments& arguments) {
    const std::string_view text = own(self).bytes();
    const auto fits = [&](const std::string& part) { return kAtEnd ? text.ends_with(part) : text.starts_with(part); };
    if (arguments.positional.size() != 1)
        return machine.fail_type("startswith and endswith take one argument in this version");
    const List* choices = arguments.positional[0].as_list();
    if (choices != nullptr && choices->is_tuple) {
        for (const Value& choice : choices->items) {
            if (choice.as_text() == nullptr)
                return machine.fail_type("a tuple for startswith or endswith holds strings");
            if (fits(choice.as_text()->bytes())) return Value::boolean(true);
        }
        return Value::boolean(false);
    }
    const Text* part = text_argument(machine, arguments, 0, "prefix");
    return part == nullptr ? Value{} : Value::boolean(fits(part->bytes()));
}

template <bool kFromRight>
Value method_split(Machine& machine, const Value& self, const Arguments& arguments) {
    const Text* separator = optional_text(machine, arguments, 0, "sep");
    const int64_t limit = integer_argument(machine, arguments, 1, "maxsplit", -1);
    if (separator != nullptr && separator->empty()) return machine.fail_type("empty separator");
    if (machine.failed() || !machine.spend_bytes(own(self).size())) return {};
    const std::string* bytes = separator == nullptr ? nullptr : &separator->bytes();
    const std::vector<Text> parts =
        kFromRight ? split_from_right(own(self), bytes, limit) : split(own(self), bytes, limit);
    std::vector<Value> items;
    for (const Text& part : parts) items.push_back(machine.make_text(part));
    return machine.make_list(std::move(items));
}

Value method_splitlines(Machine& machine, const Value& self, const Arguments& arguments) {
    std::vector<Value> items;
    for (const Text& line : split_lines(own(self), flag_argument(arguments, 0, "keepends", false)))
        items.push_back(machine.make_text(line));
    return machine.make_list(std::move(items));
}

template <bool kFromRight>
Value method_partition(Machine& machine, const Value& self, const Arguments& arguments) {
    const Text* separator = text_argument(machine, arguments, 0, "sep");
    if (separator == nullptr) return {};
    if (separator->empty()) return machine.fail_type("empty separator");
    const std::string& bytes = own(self).bytes();
    const size_t at = kFromRight ? find_last_part(bytes, separator->bytes()) : find_part(bytes, separator->bytes());
    const Value whole = machine.make_text(own(self));
    const Value empty = machine.make_text("");
    if (at == std::string::npos)
        return machine.make_list(
            kFromRight ? std::vector<Value>{empty, empty, whole} : std::vector<Value>{whole, empty, empty}, true);
    const size_t end = at + separator->size();
    return machine.make_list({machine.make_text(own(self).slice(0, at)), machine.make_text(own(self).slice(at, end)),
                              machine.make_text(own(self).slice(end, bytes.size()))},
                             true);
}

Value method_replace(Machine& machine, const Value& self, const Arguments& arguments) {
    const Text* from = text_argument(machine, arguments, 0, "old");
    const Text* to = from == nullptr ? nullptr : text_argument(machine, arguments, 1, "new");
    const int64_t limit = integer_argument(machine, arguments, 2, "count", -1);
    return to == nullptr ? Value{} : machine.make_text(replaced(machine, own(self), from->bytes(), *to, limit));
}

template <bool kFromEnd>
Value method_remove(Machine& machine, const Value& self, const Arguments& arguments) {
    const Text* part = text_argument(machine, arguments, 0, "part");
    if (part == nullptr) return {};
    const Text& text = own(self);
    const std::string_view bytes = text.bytes();
    if (kFromEnd && !part->empty() && bytes.ends_with(part->bytes()))
        return machine.make_text(text.slice(0, text.size() - part->size()));
    if (!kFromEnd && bytes.starts_with(part->bytes())) return machine.make_text(text.slice(part->size(), text.size()));
    return self;
}

/// find, rfind, index, rindex: the position in characters.
template <bool kFromRight, bool kMustExist>
Value method_find(Machine& machine, const Value& self, const Arguments& arguments) {
    const Text* part = text_argument(machine, arguments, 0, "sub");
    if (part == nullptr || !machine.spend_bytes(own(self).size())) return {};
    if (arguments.positional.size() > 1) return machine.fail_type("find with bounds is not available in this version");
    const std::string& bytes = own(self).bytes();
    const size_t at = kFromRight ? find_last_part(bytes, part->bytes()) : find_part(bytes, part->bytes());
    if (at == std::string::npos) return kMustExist ? machine.fail_type("substring not found") : Value::integer(-1);
    return Value::integer(static_cast<int64_t>(count_characters(std::string_view(bytes).substr(0, at))));
}

Value method_count(Machine& machine, const Value& self, const Arguments& arguments) {
    const Text* part = text_argument(machine, arguments, 0, "sub");
    if (part == nullptr || !machine.spend_bytes(own(self).size())) return {};
    const std::string& bytes = own(self).bytes();
    if (part->empty()) return Value::integer(static_cast<int64_t>(count_characters(bytes)) + 1);
    int64_t count = 0;
    for (size_t at = find_part(bytes, part->bytes()); at != std::string::npos;
         at = find_part(bytes, part->bytes(), at + part->size()))
        ++count;
    return Value::integer(count);
}

Value method_join(Machine& machine, const Value& self, const Arguments& arguments) {
    if (arguments.positional.size() != 1) return machine.fail_type("join takes one argument");
    const auto items = items_of(machine, arguments.positional[0]);
    if (items == nullptr) return {};
    Text out;
    for (size_t i = 0; i < items->items.size(); ++i) {
        const Text* part = items->items[i].as_text();
        if (part == nullptr)
            return machine.fail_type("sequence item " + std::to_string(i) + ": expected str instance, " +
                                     std::string(type_name(items->items[i])) + " found");
        if (!machine.spend_bytes(part->size() + own(self).size())) return {};
        if (i > 0) out.append(own(self));
        out.append(*part);
    }
    return machine.make_text(std::move(out));
}

Value method_format(Machine& machine, const Value& self, const Arguments& arguments) {
    return brace_format(machine, own(self), arguments);
}

/// Spaces on either side up to a width in characters.
template <bool kLeft, bool kRight>
Value method_pad(Machine& machine, const Value& self, const Arguments& arguments) {
    const int64_t width = integer_argument(machine, arguments, 0, "width", 0);
    if (width > 100'000) return machine.fail_type("a width of over 100,000");
    const auto size = static_cast<int64_t>(count_characters(own(self).bytes()));
    const int64_t missing = std::max<int64_t>(width - size, 0);
    const int64_t left = kLeft && kRight ? missing / 2 + (missing & width & 1) : kLeft ? missing : 0;
    Text out(std::string(static_cast<size_t>(left), ' '));
    out.append(own(self));
    out.append(std::string(static_cast<size_t>(missing - left), ' '), false);
    return machine.make_text(std::move(out));
}

/// True if the text is not empty and every character passes.
template <class Passes>
Value all_characters(const Value& self, Passes passes) {
    const std::string& bytes = own(self).bytes();
    for (size_t i = 0; i < bytes.size();) {
        const DecodedCharacter c = decode_utf8(bytes, i);
        if (!passes(c.code_point)) return Value::boolean(false);
        i += c.size;
    }
    return Value::boolean(!bytes.empty());
}

Value method_isdigit(Machine&, const Value& self, const Arguments&) {
    return all_characters(self, [](char32_t cp) { return character_class(cp) == CharacterClass::number; });
}
Value method_isalpha(Machine&, const Value& self, const Arguments&) {
    return all_characters(self, [](char32_t cp) { return character_class(cp) == CharacterClass::letter; });
}
Value method_isalnum(Machine&, const Value& self, const Arguments&) {
    return all_characters(self, [](char32_t cp) {
        return character_class(cp) == CharacterClass::letter || character_class(cp) == CharacterClass::number;
    });
}
Value method_isspace(Machine&, const Value& self, const Arguments&) { return all_characters(self, is_python_space); }
Value method_isupper(Machine& machine, const Value& self, const Arguments& arguments) {
    return find_test("upper")(machine, self, arguments);
}
Value method_islower(Machine& machine, const Value& self, const Arguments& arguments) {
    return find_test("lower")(machine, self, arguments);
}

constexpr NamedFunction kMethods[] = {
    {"capitalize", method_capitalize},
    {"center", method_pad<true, true>},
    {"count", method_count},
    {"endswith", method_starts_or_ends<true>},
    {"find", method_find<false, false>},
    {"format", method_format},
    {"index", method_find<false, true>},
    {"isalnum", method_isalnum},
    {"isalpha", method_isalpha},
    {"isdecimal", method_isdigit},
    {"isdigit", method_isdigit},
    {"islower", method_islower},
    {"isnumeric", method_isdigit},
    {"isspace", method_isspace},
    {"isupper", method_isupper},
    {"join", method_join},
    {"ljust", method_pad<false, true>},
    {"lower", method_lower},
    {"lstrip", method_strip<true, false>},
    {"partition", method_partition<false>},
    {"removeprefix", method_remove<false>},
    {"removesuffix", method_remove<true>},
    {"replace", method_replace},
    {"rfind", method_find<true, false>},
    {"rindex", method_find<true, true>},
    {"rjust", method_pad<true, false>},
    {"rpartition", method_partition<true>},
    {"rsplit", method_split<true>},
    {"rstrip", method_strip<false, true>},
    {"split", method_split<false>},
    {"splitlines", method_splitlines},
    {"startswith", method_starts_or_ends<false>},
    {"strip", method_strip<true, true>},
    {"title", method_title},
    {"upper", method_upper},
};

}  // namespace

Function find_text_method(std::string_view name) { return find_in(kMethods, name); }

}  // namespace takt::jinja
