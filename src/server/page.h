// The page at `/`, as it was built into the program.
#pragma once

#include <string_view>

namespace takt::server {

std::string_view page_html();
/// Its Content-Security-Policy: nothing from anywhere but this server.
std::string_view page_policy();

}  // namespace takt::server
