// The CPU device's op table and the pieces its operations share.
#pragma once

#include "kernels/ops.h"

namespace takt::cpu {

const OpTable& cpu_op_table();

// One a file: ops_linear.cpp, ops_attention.cpp, ops_sample.cpp.
Status op_embed(Stream& stream, const EmbedParams& params);
Status op_attention_input(Stream& stream, const AttentionInputParams& params);
Status op_attention(Stream& stream, const AttentionParams& params);
Status op_linear_residual(Stream& stream, const LinearResidualParams& params);
Status op_mlp_input(Stream& stream, const MlpInputParams& params);
Status op_logits(Stream& stream, const LogitsParams& params);
Status op_sample(Stream& stream, const SampleParams& params);
Status plan_attention(const Device& device, const AttentionPlanParams& params);
int32_t max_attention_work(const Device& device, const KvLayout& kv, int32_t num_heads, int32_t rows, int32_t segments,
                           int32_t max_context);
size_t attention_scratch_bytes(const Device& device, const KvLayout& kv, int32_t num_heads, int32_t max_work, int32_t rows);
size_t sample_workspace_bytes(const Device& device, int32_t samples, int32_t vocab);

}  // namespace takt::cpu
