// Fills the op table: unwraps the native stream and asks the device for its multiprocessors.
#include "kernels/cuda/ops.h"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/sample.h"

namespace takt::cuda {
namespace {

template <class Params, class Run>
Status enqueue(Stream& s, const Params& params, Run run) {
    auto& stream = static_cast<NativeStream&>(s);
    if (const Status ready = stream.begin_operation(&params, sizeof(params)); !ready.ok()) return ready;
    return stream.end_operation(run(stream.native(), params));
}

Status op_embed(Stream& s, const EmbedParams& p) { return enqueue(s, p, run_embed); }
Status op_attention_input(Stream& s, const AttentionInputParams& p) { return enqueue(s, p, run_attention_input); }
Status op_attention(Stream& s, const AttentionParams& p) {
    const int32_t num_sms = s.device().caps().num_threads;
    return enqueue(s, p, [&](cudaStream_t stream, const AttentionParams& a) { return run_attention(stream, a, num_sms); });
}
Status op_attention_unsplit(Stream& s, const AttentionParams& p) {
    const int32_t num_sms = s.device().caps().num_threads;
    return enqueue(s, p, [&](cudaStream_t stream, const AttentionParams& a) { return run_attention(stream, a, num_sms, true); });
}
Status op_linear_residual(Stream& s, const LinearResidualParams& p) { return enqueue(s, p, run_linear_residual); }
Status op_mlp_input(Stream& s, const MlpInputParams& p) { return enqueue(s, p, run_mlp_input); }
Status op_logits(Stream& s, const LogitsParams& p) { return enqueue(s, p, run_logits); }
Status op_sample(Stream& s, const SampleParams& p) { return enqueue(s, p, run_sample); }

Status op_plan(const Device& d, const AttentionPlanParams& p) { return plan_attention(p, d.caps().num_threads); }
Status op_plan_unsplit(const Device& d, const AttentionPlanParams& p) {
    AttentionPlanParams unsplit = p;
    unsplit.deterministic = true;
    return plan_attention(unsplit, d.caps().num_threads);
}
int32_t op_max_work(const Device& d, const KvLayout& kv, int32_t num_heads, int32_t rows, int32_t segments, int32_t) {
    return max_attention_work(kv, num_heads, rows, segments, d.caps().num_threads);
}
size_t op_scratch(const Device&, const KvLayout& kv, int32_t, int32_t max_work, int32_t) {
    return attention_scratch_bytes(kv, max_work);
}
size_t op_sample_workspace(const Device&, int32_t samples, int32_t vocab) {
    return sample_workspace_bytes(samples, vocab);
}

OpTable make_table(bool deterministic) {
    OpTable t;
    t.embed = op_embed;
    t.attention_input = op_attention_input;
    t.attention = deterministic ? op_attention_unsplit : op_attention;
    t.linear_residual = op_linear_residual;
    t.mlp_input = op_mlp_input;
    t.logits = op_logits;
    t.sample = op_sample;
    t.plan_attention = deterministic ? op_plan_unsplit : op_plan;
    t.max_attention_work = op_max_work;
    t.attention_scratch_bytes = op_scratch;
    t.sample_workspace_bytes = op_sample_workspace;
    return t;
}

}   // namespace

const OpTable& cuda_op_table() {
    static const OpTable table = make_table(false);
    return table;
}

const OpTable& cuda_deterministic_op_table() {
    static const OpTable table = make_table(true);
    return table;
}

}   // namespace takt::cuda
