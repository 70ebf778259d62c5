// Origin-tracked strings. Pure value type. See text.h.
#include "model/jinja/text.h"

#include <algorithm>

namespace takt::jinja {

void Text::append(std::string_view bytes, bool from_message) {
    if (bytes.empty()) return;
    if (bytes_.empty()) {
        first_from_message_ = from_message;
        borders_.clear();
    } else if (last_from_message() != from_message) {
        borders_.push_back(bytes_.size());
    }
    bytes_.append(bytes);
}

void Text::append(const Text& other, size_t begin, size_t end) {
    if (begin >= end) return;
    // A copy first if a text is appended to itself.
    if (&other == this) return append(Text(other), begin, end);
    auto border = std::upper_bound(other.borders_.begin(), other.borders_.end(), begin);
    bool from_message = other.first_from_message_ != ((border - other.borders_.begin()) % 2 == 1);
    const std::string_view bytes = other.bytes_;
    while (begin < end) {
        const size_t stop = border == other.borders_.end() ? end : std::min(end, *border++);
        append(bytes.substr(begin, stop - begin), from_message);
        from_message = !from_message;
        begin = stop;
    }
}

Text Text::slice(size_t begin, size_t end) const {
    Text out;
    out.append(*this, begin, std::min(end, size()));
    return out;
}

void Text::for_each_run(const std::function<void(std::string_view, bool)>& visit) const {
    size_t begin = 0;
    bool from_message = first_from_message_;
    const auto run = [&](size_t end) {
        if (end > begin) visit(std::string_view(bytes_).substr(begin, end - begin), from_message);
        begin = end;
        from_message = !from_message;
    };
    for (const size_t border : borders_) run(border);
    run(bytes_.size());
}

}  // namespace takt::jinja
