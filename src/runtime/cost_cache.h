// CostCache: calibrated cost tables on disk, one a device, model and build, in one small text file. A file that cannot be read or
// written costs a calibration, never a failure. Load and stop only, never while steps run.
#pragma once

#include <string>
#include <vector>

namespace takt {

/// What a table holds for: device, model and this build, as one line.
std::string cost_cache_key(const std::string& device_name, int num_threads, const std::string& model_name, int64_t weight_bytes);

/// The table kept for `key`; empty if there is none or the file cannot be read.
std::string read_cost_cache(const std::string& path, const std::string& key);

/// Keeps `table` for `key` beside the others (the latest sixteen in all): a new file that takes the old one's place at once.
/// Creates the folder. False if that failed.
bool write_cost_cache(const std::string& path, const std::string& key, const std::string& table);

}  // namespace takt
