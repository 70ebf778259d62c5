// FairShares: virtual counters of tenants in milliseconds of device time over weight. The tenant with the lowest counter is
// served first among work that is not urgent. Pure, engine thread only; knows tenants by index, nothing of requests.
// A tenant that comes back from idleness is lifted to the lowest active counter, so that idling earns no credit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace takt {

class FairShares {
public:
    explicit FairShares(const std::vector<double>& weights);

    /// One live request more of the tenant.
    void enter(int32_t tenant);
    /// One less.
    void leave(int32_t tenant);
    /// Device time that ran for the tenant; `class_weight` over 1 makes it cheaper.
    void charge(int32_t tenant, double milliseconds, double class_weight);

    [[nodiscard]] double counter(int32_t tenant) const { return tenants_[static_cast<size_t>(tenant)].counter; }
    [[nodiscard]] bool is_active(int32_t tenant) const { return tenants_[static_cast<size_t>(tenant)].num_live > 0; }
    [[nodiscard]] int32_t num_tenants() const { return static_cast<int32_t>(tenants_.size()); }
    /// Largest |V_a - V_b| over pairs that are both active.
    [[nodiscard]] double greatest_gap() const;

private:
    struct Tenant {
        double weight = 1.0;
        double counter = 0.0;   // ms over weight
        int32_t num_live = 0;
    };
    std::vector<Tenant> tenants_;
};

}  // namespace takt
