#include <cstdio>

#include "cli/bench.h"
#include "cli/command.h"

namespace takt::cli {
int bench(const BenchOptions&) { std::fputs("takt bench: not available in this version\n", stderr); return kUsage; }
}  // namespace takt::cli
