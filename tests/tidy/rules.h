// The tidy rules: each looks at one file and says what breaks the house's architecture in it. Pure; no file access.
#pragma once

#include "tidy/source_file.h"

namespace takt::tidy {

/// Include arrows point down only; CUDA, Beast, Asio, toml++ and test headers stay in their folders.
Findings check_includes(const SourceFile& file);
/// At most 500 lines a file, 70 a function, 140 columns.
Findings check_sizes(const SourceFile& file);
/// Clocks, getenv, rand, detached and throw stay where they belong.
Findings check_words(const SourceFile& file);
/// File names, the comment that opens a file, `#pragma once`.
Findings check_form(const SourceFile& file);
/// A `co_await` stands alone: a full statement or the sole initialiser of a named variable, with plain arguments.
Findings check_coroutines(const SourceFile& file);

/// Random draws stand in at most one argument of a call.
Findings check_chance(const SourceFile& file);

/// All of them.
Findings check_all(const SourceFile& file);

}  // namespace takt::tidy
