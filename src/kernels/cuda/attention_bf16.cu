// Attention over a bf16 cache, and the entry that chooses by the cache's type.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_kernel.cuh"

namespace takt::cuda {

Status launch_attention_bf16(cudaStream_t stream, const AttentionArguments& a, int blocks, int head_dim) {
    return launch_attention<__nv_bfloat16>(stream, a, blocks, head_dim);
}

Status run_attention(cudaStream_t stream, const AttentionParams& p, int32_t num_sms) {
    AttentionArguments a = {};
    a.header = p.in.header;
    a.segments = p.in.segments;
    a.work = p.in.work;
    a.block_ids = p.in.block_ids;
    a.q = static_cast<const __nv_bfloat16*>(p.q);
    a.kv_layer = static_cast<const uint8_t*>(p.kv_layer);
    a.partials = static_cast<float*>(p.partials);
    a.out = static_cast<__nv_bfloat16*>(p.out);
    a.block_stride = static_cast<int64_t>(p.kv.block_stride());
    a.kv_stride = static_cast<int64_t>(p.kv.kv_stride());
    a.head_stride = static_cast<int64_t>(p.kv.head_stride());
    a.scale = p.scale;
    a.scale_log2 = p.scale * kLog2e;
    a.soft_cap = p.soft_cap;
    a.num_heads = p.num_heads;
    a.group = p.num_heads / p.kv.num_kv_heads;
    a.block_tokens = p.kv.block_tokens;
    a.window = p.window;
    const int blocks = 2 * num_sms;
    if (p.kv.type == DType::bf16) return launch_attention_bf16(stream, a, blocks, p.kv.head_dim);
    if (p.kv.type == DType::f16) return launch_attention_f16(stream, a, blocks, p.kv.head_dim);
    return {kStatusUnsupported, "CUDA: KV types are f16 and bf16 in this version"};
}

}   // namespace takt::cuda
