// Logger: the engine's way to its owner's log sink. A copy is cheap; an empty sink costs a test. Any thread.
#pragma once

#include <string_view>
#include <utility>

#include <takt/config.h>

namespace takt {

class Logger {
public:
    explicit Logger(LogSink sink) : sink_(std::move(sink)) {}
    void write(LogLevel level, std::string_view component, std::string_view message) const {
        if (sink_) sink_(LogRecord{level, component, message});
    }

private:
    LogSink sink_;
};

}  // namespace takt
