// Fills the attention kernels' arguments and chooses which of them run: by the padded row count, the head dimension and the
// card.
#include "kernels/cuda/attention.h"

#include "kernels/cuda/attention_arguments.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

decltype(&cuTensorMapEncodeTiled) encoder() {
    static void* const found = [] {
        void* f = nullptr;
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result);
        return e == cudaSuccess && result == cudaDriverEntryPointSuccess ? f : nullptr;
    }();
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

/// The cache as [eight tokens][64-column chunk][token][column]; a box is one block of one head, 128-byte swizzled.
Status map_cache(CUtensorMap* map, const KvLayout& kv, const void* layer) {
    const auto u = [](size_t v) { return static_cast<cuuint64_t>(v); };
    const auto chunks = static_cast<cuuint32_t>(kv.head_dim / 64), groups = static_cast<cuuint32_t>(kv.block_tokens / 8);
    const cuuint64_t dims[4] = {64, 8, chunks, u(kv.layer_bytes() / (kv.token_stride() * 8))};
    const cuuint64_t strides[3] = {u(kv.token_stride()), 128, u(kv.token_stride() * 8)};
    const cuuint32_t box[4] = {64, 8, chunks, groups}, steps[4] = {1, 1, 1, 1};
    const CUresult r = encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(layer), dims, strides, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? Status{} : Status{kStatusBadArgument, "CUDA: the cache's tensor map was refused"};
}

}   // namespace

Status run_attention(cudaStream_t stream, const AttentionParams& p, int32_t num_sms, bool deterministic) {
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
    a.scale_log2 = p.scale * kLog2e;
    a.soft_cap = p.soft_cap;
    a.cap_in = p.soft_cap > 0 ? 2 * p.scale / p.soft_cap * kLog2e : 0.0f;
    a.cap_out = p.soft_cap * kLog2e;
    a.num_heads = p.num_heads;
    a.group = p.num_heads / p.kv.num_kv_heads;
    a.block_tokens = p.kv.block_tokens;
    a.window = p.window;
    if (p.kv.block_tokens % 8 != 0) return {kStatusUnsupported, "CUDA: KV blocks are multiples of 8 tokens"};
    AttentionLaunch launch;
    launch.num_sms = num_sms;
    a.alone = !deterministic && p.rows <= kSmallSteps;
    launch.head_dim = p.kv.head_dim;
    // Decodes alone leave no prefill items where their heads fit one item.
    launch.prefill = deterministic || (p.rows > kSmallSteps && !(p.decodes && a.group <= kDecodeRows));
    launch.full_blocks = !launch.prefill && p.kv.head_dim <= 128 && has_one_block_results(p.rows, p.kv.num_kv_heads, num_sms);
    const bool is_two = p.rows > kSmallSteps && !launch.full_blocks;
    launch.decode_blocks = deterministic ? 0 : is_two ? 2 * num_sms : num_sms;
    launch.wgmma = launch.prefill && (p.kv.head_dim == 64 || p.kv.head_dim == 128) && p.kv.block_tokens <= 128 &&
                   has_warpgroups() && encoder() != nullptr;
    if (launch.wgmma) {
        const Status s = map_cache(&launch.map, p.kv, p.kv_layer);
        if (!s.ok()) return s;
    }
    if (p.kv.type == DType::bf16) return launch_attention_bf16(stream, a, launch);
    if (p.kv.type == DType::f16) return launch_attention_f16(stream, a, launch);
    return {kStatusUnsupported, "CUDA: KV types are f16 and bf16 in this version"};
}

}   // namespace takt::cuda
