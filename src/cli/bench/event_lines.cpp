// Server-sent events, of which only `data` matters here.
#include "cli/bench/event_lines.h"

namespace takt::cli {

void EventLines::feed(std::string_view bytes, const std::function<void(std::string_view data)>& sink) {
    for (const char c : bytes) {
        if (c == '\n') {
            end_line(sink);
        } else {
            line_ += c;
        }
    }
}

void EventLines::end_line(const std::function<void(std::string_view data)>& sink) {
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    if (line_.empty()) {
        if (has_data_) sink(data_);
        data_.clear();
        has_data_ = false;
        return;
    }
    constexpr std::string_view field = "data:";
    if (line_.compare(0, field.size(), field) == 0) {
        std::string_view value = std::string_view(line_).substr(field.size());
        if (!value.empty() && value.front() == ' ') value.remove_prefix(1);
        if (has_data_) data_ += '\n';
        data_ += value;
        has_data_ = true;
    }
    line_.clear();
}

}  // namespace takt::cli
