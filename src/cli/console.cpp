// Log lines and the loading bar. One mutex keeps lines whole; any thread.
#include "cli/console.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cli/clock.h"
#include "cli/quoted_text.h"

namespace takt::cli {

namespace {

std::string_view level_name(LogLevel level) {
    switch (level) {
    case LogLevel::debug: return "debug";
    case LogLevel::info: return "info";
    case LogLevel::warning: return "warning";
    case LogLevel::error: return "error";
    case LogLevel::off: break;
    }
    return "off";
}

LogLevel parse_level(const std::string& name) {
    for (const LogLevel level : {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error}) {
        if (name == level_name(level)) return level;
    }
    return LogLevel::off;
}

std::string log_line(const LogRecord& record, bool json) {
    std::string out;
    if (!json) {
        out = timestamp() + ' ';
        out += level_name(record.level);
        out += ' ';
        out += record.component;
        out += ": ";
        // One record a line, whatever a client put into it.
        for (const char c : record.message) out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
        return out + '\n';
    }
    out = "{\"time\":\"" + timestamp() + "\",\"level\":" + quoted_text(level_name(record.level));
    out += ",\"component\":" + quoted_text(record.component);
    out += ",\"message\":" + quoted_text(record.message);
    return out + "}\n";
}

class Console {
public:
    void log(const std::string& line) {
        const std::lock_guard<std::mutex> lock(mutex_);
        clear_bar();
        std::fputs(line.c_str(), stderr);
    }

    void progress(const LoadProgress& progress) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const std::uint64_t total = std::max<std::uint64_t>(progress.total, 1);
        const int percent = static_cast<int>(std::min<std::uint64_t>(progress.done * 100 / total, 100));
        // A redraw a percent is enough for an eye.
        if (percent == percent_ && progress.phase == phase_) return;
        percent_ = percent;
        phase_ = progress.phase;
        constexpr int width = 40;
        const int filled = percent * width / 100;
        std::fprintf(stderr, "\r\x1b[K%-12s [%s%s] %3d %%", phase_.c_str(), std::string(static_cast<std::size_t>(filled), '#').c_str(),
                     std::string(static_cast<std::size_t>(width - filled), ' ').c_str(), percent);
        bar_ = true;
        if (percent == 100) clear_bar();
        std::fflush(stderr);
    }

private:
    void clear_bar() {
        if (std::exchange(bar_, false)) std::fputs("\r\x1b[K", stderr);
    }

    std::mutex mutex_;
    std::string phase_;
    int percent_ = -1;
    bool bar_ = false;
};

}  // namespace

void attach_console(Config& config, LogLevel at_least) {
    const auto console = std::make_shared<Console>();
    const LogLevel level = std::max(parse_level(config.log_section.level), at_least);
    const bool json = config.log_section.format == "json";
    if (level != LogLevel::off) {
        config.log = [console, level, json](const LogRecord& record) {
            if (record.level >= level) console->log(log_line(record, json));
        };
    }
    if (isatty(STDERR_FILENO) == 1) {
        config.on_progress = [console](const LoadProgress& progress) { console->progress(progress); };
    }
}

}  // namespace takt::cli
