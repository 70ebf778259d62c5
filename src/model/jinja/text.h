// Text: a string of a template evaluation in which every byte knows whether it came from a message (or another input of
// the request) or from the template itself. Concatenating and cutting keep the origins. Value type, no thread rules.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace takt::jinja {

class Text {
public:
    Text() = default;
    explicit Text(std::string bytes, bool from_message = false)
        : bytes_(std::move(bytes)), first_from_message_(from_message) {}

    [[nodiscard]] const std::string& bytes() const { return bytes_; }
    [[nodiscard]] size_t size() const { return bytes_.size(); }
    [[nodiscard]] bool empty() const { return bytes_.empty(); }

    void append(std::string_view bytes, bool from_message);
    void append(const Text& other) { append(other, 0, other.size()); }
    /// Appends bytes [begin, end) of another text.
    void append(const Text& other, size_t begin, size_t end);
    [[nodiscard]] Text slice(size_t begin, size_t end) const;

    /// True if some byte came from a message.
    [[nodiscard]] bool has_message_bytes() const {
        return !bytes_.empty() && (first_from_message_ || !borders_.empty());
    }

    /// Calls visit(bytes, from_message) for each maximal stretch of one origin.
    void for_each_run(const std::function<void(std::string_view, bool)>& visit) const;

private:
    [[nodiscard]] bool last_from_message() const { return first_from_message_ != (borders_.size() % 2 == 1); }

    std::string bytes_;
    bool first_from_message_ = false;
    std::vector<size_t> borders_;  // offsets at which the origin changes, ascending, none at 0 or the end
};

}  // namespace takt::jinja
