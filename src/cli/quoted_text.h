// A string in quotes, as JSON and TOML both read it.
#pragma once

#include <string>
#include <string_view>

namespace takt::cli {

/// Control characters become \u00XX, quotes and backslashes are escaped; all other bytes stay as they are.
std::string quoted_text(std::string_view text);

}  // namespace takt::cli
