// FairShares: virtual counters of tenants in milliseconds of device time over weight. The tenant with the lowest counter is
// served first among work that is not urgent. Pure, engine thread only; knows tenants by index, nothing of requests.
// Active is who has a prompt that waits or is computed. Who becomes active is lifted to the lowest active counter, or where nobody is
// to that of the last one who was, so that idling earns no credit, and who used a device that nobody wanted pays nothing for it later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace takt {

/// Of what it had less than others a tenant keeps so much when it becomes active: its next prompt goes before theirs.
constexpr double kReturnCreditMs = 200;   // over weight

/// Tenants whose counters differ by no more are equal: else two of them would take turns step by step, and both be done later.
constexpr double kEqualSharesMs = 100;

class FairShares {
public:
    explicit FairShares(const std::vector<double>& weights);

    /// One prompt more of the tenant that has to be computed.
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
    void advance();
    struct Tenant {
        double weight = 1.0;
        double counter = 0.0;   // ms over weight
        int32_t num_live = 0;   // prompts
    };
    std::vector<Tenant> tenants_;
    double level_ = 0.0;
};

}  // namespace takt
