#include <cstdio>

#include "cli/command.h"

namespace takt::cli {
int chat(const ChatOptions&) { std::fputs("takt chat: not available in this version\n", stderr); return kUsage; }
}  // namespace takt::cli
