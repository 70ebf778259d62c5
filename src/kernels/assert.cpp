// The assertion handler: process-wide, replaced only by tests.
#include "kernels/assert.h"

#include <cstdio>
#include <cstdlib>

namespace takt {
namespace {
AssertHandler g_handler = nullptr;
}

AssertHandler set_assert_handler(AssertHandler handler) {
    AssertHandler old = g_handler;
    g_handler = handler;
    return old;
}

void assert_failed(const char* expression, const char* file, int line) {
    if (g_handler != nullptr) g_handler(expression, file, line);
    std::fprintf(stderr, "takt: assertion failed: %s (%s:%d)\n", expression, file, line);
    std::abort();
}

}  // namespace takt
