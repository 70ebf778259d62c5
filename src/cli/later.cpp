// Commands that the contract names and this version does not have: they say so and exit as wrong usage.
#include <cstdio>

#include "cli/command.h"

namespace takt::cli {

namespace {

int not_available(const char* command) {
    std::fprintf(stderr, "takt %s: not available in this version\n", command);
    return kUsage;
}

}  // namespace

int quantize(const QuantizeOptions&) { return not_available("quantize"); }

}  // namespace takt::cli
