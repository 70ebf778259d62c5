// The open-file limit of the process.
#pragma once

#include <takt/config.h>

namespace takt::cli {

/// Raises the soft limit to the hard one. @throws config_error if server.max_connections does not fit, with both numbers.
void raise_file_limit(const Config& config);

}  // namespace takt::cli
