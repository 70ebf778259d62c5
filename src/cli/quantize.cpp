// `takt quantize`: a quantised copy of a model, with the error of each tensor.
#include <takt/quantize.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cli/command.h"

namespace takt::cli {

namespace {

struct Interrupted {};

volatile std::sig_atomic_t interrupted = 0;

// Once: after the tensor at hand, so that what is written so far is removed; again: at once.
void interrupt(int) {
    if (interrupted != 0) std::_Exit(kInterrupted);
    interrupted = 1;
}

}  // namespace

int quantize(const QuantizeOptions& options) {
    std::signal(SIGINT, interrupt);
    std::signal(SIGTERM, interrupt);
    bool has_head = false;   // a refusal is no table
    const auto print = [&has_head](const QuantizedTensorReport& t) {
        if (!std::exchange(has_head, true)) std::printf("%-40s %-6s %-6s %12s %12s\n", "tensor", "from", "to", "rms error", "largest");
        if (t.from == t.to) {
            std::printf("%-40s %-6s %-6s %12s %12s\n", t.name.c_str(), t.from.c_str(), t.to.c_str(), "copied", "");
        } else {
            std::printf("%-40s %-6s %-6s %11.4f%% %12.3g\n", t.name.c_str(), t.from.c_str(), t.to.c_str(), 100 * t.relative_error,
                        t.largest_error);
        }
        if (interrupted != 0) throw Interrupted();
    };
    QuantizeReport report;
    try {
        report = takt::quantize(options.input, options.output, options.format, print);
    } catch (const Interrupted&) {
        return kInterrupted;
    }
    constexpr double kMib = 1024.0 * 1024.0;
    std::printf("%s: %.1f MiB of weights, %.1f MiB before\n", options.output.c_str(), static_cast<double>(report.bytes_out) / kMib,
                static_cast<double>(report.bytes_in) / kMib);
    return kDone;
}

}  // namespace takt::cli
