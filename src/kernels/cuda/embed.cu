// A block a row. A negative token is a slot whose last sampled token is read here, so that the host never sees it in
// between.
#include "kernels/cuda/embed.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/ops_ptx.cuh"

namespace takt::cuda {
namespace {

__global__ void __launch_bounds__(256)
    embed_kernel(const StepHeader* header, const RowInput* rows, const int32_t* slot_tokens, const __nv_bfloat16* table,
                 int64_t stride, int64_t num_tokens, int32_t dim, float scale, float* hidden) {
    dependents_may_launch();
    wait_for_predecessors();
    const int row = static_cast<int>(blockIdx.x);
    if (row >= header->num_rows) return;
    int64_t token = rows[row].token;
    if (token < 0) token = __ldcg(slot_tokens + ~token);
    if (token < 0 || token >= num_tokens) token = 0;
    const __nv_bfloat16* from = table + token * stride;
    for (int c = static_cast<int>(threadIdx.x); c < dim; c += 256) {
        hidden[static_cast<int64_t>(row) * dim + c] = __bfloat162float(from[c]) * scale;
    }
}

}   // namespace

Status run_embed(cudaStream_t stream, const EmbedParams& p) {
    const auto& table = *static_cast<const CudaEmbedding*>(p.table);
    return launch_kernel(stream, dim3(static_cast<unsigned>(p.rows)), dim3(256), 0, Edge::full, embed_kernel,
                         static_cast<const StepHeader*>(p.in.header), static_cast<const RowInput*>(p.in.rows),
                         p.slot_tokens, table.data(), table.stride(), table.num_tokens(),
                         static_cast<int32_t>(table.hidden()), p.scale, static_cast<float*>(p.hidden));
}

}   // namespace takt::cuda
