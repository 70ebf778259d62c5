// How a conformance case runs over all devices, each in a section of its own; a device that is not there is named as skipped.
#pragma once

#include <string>

#include "catch.h"
#include "conformance/device_rig.h"

namespace takt::conformance {

template <class Check>
void on_every_device(Check check) {
    for (RigKind kind : {RigKind::cpu_manual, RigKind::cpu_threaded, RigKind::sim, RigKind::cuda}) {
        DYNAMIC_SECTION(rig_name(kind)) {
            const auto rig = make_rig(kind);
            if (rig == nullptr) {
                SUCCEED("skipped: no such device here");
                continue;
            }
            check(*rig);
        }
    }
}

/// Runs this program's hidden cases of `tag` in a child process and checks that they pass; skipped where there is no CUDA device.
void in_child_with_cuda(const std::string& tag);

}  // namespace takt::conformance
