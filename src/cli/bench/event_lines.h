// EventLines: cuts a stream of bytes into the data of its server-sent events. Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace takt::cli {

class EventLines {
public:
    /// Takes bytes as they come and calls `sink` with the data of each event that they end, lines joined by '\n'.
    void feed(std::string_view bytes, const std::function<void(std::string_view data)>& sink);

private:
    void end_line(const std::function<void(std::string_view data)>& sink);

    std::string line_;
    std::string data_;
    bool has_data_ = false;
};

}  // namespace takt::cli
