// CostRoofline: what a device's speeds and a model's sizes say of a step before anything was measured. Plain data.
#pragma once

namespace takt {

/// First guess before anything was measured.
struct CostRoofline {
    double bytes_per_second = 50e9;
    double operations_per_second = 1e11;
    double launch_seconds = 0;
    double weight_bytes = 0;           ///< read by every step
    double operations_per_row = 0;
    double kv_bytes_per_token = 0;
    double operations_per_pair = 0;
};

}  // namespace takt
