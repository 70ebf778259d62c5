// OpTable: the operations of a forward step, as plain function pointers a backend fills. Each enqueues on the stream and returns
// at once; parameters are copied. A null entry means that the device has no such operation (sim has only sim_step).
#pragma once

#include "kernels/params.h"

namespace takt {

struct OpTable {
    Status (*embed)(Stream&, const EmbedParams&) = nullptr;
    Status (*attention_input)(Stream&, const AttentionInputParams&) = nullptr;
    Status (*attention)(Stream&, const AttentionParams&) = nullptr;
    Status (*linear_residual)(Stream&, const LinearResidualParams&) = nullptr;
    Status (*mlp_input)(Stream&, const MlpInputParams&) = nullptr;
    Status (*logits)(Stream&, const LogitsParams&) = nullptr;
    Status (*sample)(Stream&, const SampleParams&) = nullptr;
    Status (*sim_step)(Stream&, const SimStepParams&) = nullptr;

    /// Fills host.work and host.header->num_work. kStatusBadArgument if the list would exceed capacity.max_work.
    Status (*plan_attention)(const Device&, const AttentionPlanParams&) = nullptr;
    /// Most work items that `rows` rows in `segments` segments over `max_context` positions can need.
    int32_t (*max_attention_work)(const Device&, const KvLayout&, int32_t num_heads, int32_t rows, int32_t segments,
                                  int32_t max_context) = nullptr;
    size_t (*attention_scratch_bytes)(const Device&, const KvLayout&, int32_t num_heads, int32_t max_work,
                                      int32_t rows) = nullptr;
    size_t (*sample_workspace_bytes)(const Device&, int32_t samples, int32_t vocab) = nullptr;
};

}  // namespace takt
