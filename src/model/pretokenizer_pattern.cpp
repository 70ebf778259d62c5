// The PCRE2 side of the pre-tokenizer. Immutable patterns, any thread; see pretokenizer_pattern.h.
#include "model/pretokenizer_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <string>

namespace takt {

struct PatternCode {
    pcre2_code* code = nullptr;
};

struct PatternMemory {
    pcre2_match_data* match = nullptr;
    pcre2_match_context* context = nullptr;
    pcre2_jit_stack* stack = nullptr;
};

void PatternMemoryDeleter::operator()(PatternMemory* memory) const {
    pcre2_match_data_free(memory->match);
    pcre2_match_context_free(memory->context);
    pcre2_jit_stack_free(memory->stack);
    delete memory;
}

void PatternCodeDeleter::operator()(PatternCode* code) const {
    pcre2_code_free(code->code);
    delete code;
}

namespace {

/// White_Space as the inside of a character class.
constexpr std::string_view kSpaceClass =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
/// What \w is in the reference's expressions (marks too, fractions not), likewise.
constexpr std::string_view kWordClass = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc})";
constexpr size_t kJitStackStart = 64 * 1024;
constexpr size_t kJitStackMax = 8 * 1024 * 1024;
constexpr uint32_t kMatchLimit = 50'000'000;  // steps a match; known patterns take a few a byte
constexpr uint32_t kHeapLimitKib = 64 * 1024;

/// Replaces \s, \S, \w and \W by their properties. A \S or \W inside a class stays (it has no spelling there).
std::string with_unicode_classes(std::string_view expression) {
    std::string out;
    bool in_class = false;
    for (size_t i = 0; i < expression.size(); ++i) {
        const char c = expression[i];
        if (c == '\\' && i + 1 < expression.size()) {
            const char escaped = expression[++i];
            const std::string members(escaped == 's' || escaped == 'S' ? kSpaceClass : kWordClass);
            if (escaped == 's' || escaped == 'w') {
                out += in_class ? members : "[" + members + "]";
            } else if ((escaped == 'S' || escaped == 'W') && !in_class) {
                out += "[^" + members + "]";
            } else {
                out += c;
                out += escaped;
            }
            continue;
        }
        if (c == '[' && !in_class) {
            in_class = true;
            out += c;
            // A ']' directly after '[' or '[^' is a member, not the end.
            if (i + 1 < expression.size() && expression[i + 1] == '^') out += expression[++i];
            if (i + 1 < expression.size() && expression[i + 1] == ']') out += expression[++i];
            continue;
        }
        if (c == ']') in_class = false;
        out += c;
    }
    return out;
}

}  // namespace

std::unique_ptr<PatternMemory, PatternMemoryDeleter> make_pattern_memory() {
    std::unique_ptr<PatternMemory, PatternMemoryDeleter> memory(new PatternMemory);
    memory->match = pcre2_match_data_create(1, nullptr);
    memory->context = pcre2_match_context_create(nullptr);
    memory->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
    pcre2_set_match_limit(memory->context, kMatchLimit);
    pcre2_set_heap_limit(memory->context, kHeapLimitKib);
    if (memory->stack != nullptr) pcre2_jit_stack_assign(memory->context, nullptr, memory->stack);
    return memory;
}

Result<Pattern> Pattern::compile(std::string_view expression) {
    const std::string rewritten = with_unicode_classes(expression);
    int error_code = 0;
    PCRE2_SIZE error_offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                                     &error_code, &error_offset, nullptr);
    if (code == nullptr) {
        std::array<PCRE2_UCHAR, 256> text{};
        pcre2_get_error_message(error_code, text.data(), text.size());
        return Error{"pre-tokenizer pattern \"" + std::string(expression) +
                     "\" is not valid: " + reinterpret_cast<const char*>(text.data()) + " at offset " +
                     std::to_string(error_offset) + " of its expanded form"};
    }
    // Without JIT (no executable memory) the interpreter takes over by itself.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    Pattern out;
    out.code_.reset(new PatternCode{code});
    return out;
}

std::optional<std::pair<size_t, size_t>> Pattern::find(std::string_view text, size_t from,
                                                       PatternMemory& memory) const {
    const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, 0,
                                  memory.match, memory.context);
    if (found < 0) return std::nullopt;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(memory.match);
    return std::pair<size_t, size_t>{bounds[0], bounds[1]};
}

}  // namespace takt
