// FairShares: see the header.
#include "runtime/fairness.h"

#include <algorithm>

#include "kernels/assert.h"

namespace takt {

FairShares::FairShares(const std::vector<double>& weights) : tenants_(std::max<size_t>(weights.size(), 1)) {
    for (size_t i = 0; i < weights.size(); ++i) tenants_[i].weight = std::max(weights[i], 1e-6);
}

/// Where the tenants stand: the lowest active counter, which never falls back.
void FairShares::advance() {
    bool found = false;
    double lowest = 0;
    for (const Tenant& tenant : tenants_) {
        if (tenant.num_live == 0) continue;
        lowest = found ? std::min(lowest, tenant.counter) : tenant.counter;
        found = true;
    }
    if (found) level_ = std::max(level_, lowest);
}

void FairShares::enter(int32_t tenant) {
    Tenant& entering = tenants_[static_cast<size_t>(tenant)];
    if (entering.num_live == 0) {
        advance();
        entering.counter = std::max(entering.counter, level_ - kReturnCreditMs);
    }
    ++entering.num_live;
}

void FairShares::leave(int32_t tenant) {
    Tenant& leaving = tenants_[static_cast<size_t>(tenant)];
    TAKT_ASSERT(leaving.num_live > 0);
    advance();
    --leaving.num_live;
}

void FairShares::charge(int32_t tenant, double milliseconds, double class_weight) {
    Tenant& charged = tenants_[static_cast<size_t>(tenant)];
    charged.counter += milliseconds / (charged.weight * std::max(class_weight, 1e-6));
}

double FairShares::greatest_gap() const {
    bool found = false;
    double low = 0, high = 0;
    for (const Tenant& tenant : tenants_) {
        if (tenant.num_live == 0) continue;
        low = found ? std::min(low, tenant.counter) : tenant.counter;
        high = found ? std::max(high, tenant.counter) : tenant.counter;
        found = true;
    }
    return high - low;
}

}  // namespace takt
