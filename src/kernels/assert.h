// TAKT_ASSERT: a check for bugs in takt, on in every build. Never reachable from user input.
// The handler may be replaced (tests); the default writes one line to standard error and aborts.
#pragma once

namespace takt {

using AssertHandler = void (*)(const char* expression, const char* file, int line);

/// Replaces the process-wide handler; returns the old one. Not thread-safe: call before threads start.
AssertHandler set_assert_handler(AssertHandler handler);

[[noreturn]] void assert_failed(const char* expression, const char* file, int line);

}  // namespace takt

#define TAKT_ASSERT(cond) ((cond) ? static_cast<void>(0) : ::takt::assert_failed(#cond, __FILE__, __LINE__))
#ifdef NDEBUG
#define TAKT_DASSERT(cond) static_cast<void>(0)
#else
#define TAKT_DASSERT(cond) TAKT_ASSERT(cond)
#endif
