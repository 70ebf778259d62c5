// What the attention kernels of one launch read, and the launches by cache type. Host and device code.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/params.h"

namespace takt::cuda {

constexpr float kLog2e = 1.4426950408889634f;

struct AttentionArguments {
    StepHeader* header;
    const SegmentInput* segments;
    AttentionWork* work;
    const int32_t* block_ids;
    const __nv_bfloat16* q;
    const uint8_t* kv_layer;
    float* partials;   // [rows][head_dim + 4]: weighted values, then maximum and sum
    __nv_bfloat16* out;
    int64_t block_stride, kv_stride, head_stride;
    float scale_log2, soft_cap;
    float cap_in, cap_out;   // capped scores as base-2 exponents: cap_out * tanh, tanh from 2^(score * cap_in)
    int32_t num_heads, group, block_tokens, window;
    bool alone;   // no two decode blocks on a multiprocessor; those without items stay a while
};

/// Which kernels one call of attention starts. A step of up to kSmallSteps rows is planned without prefill items.
struct AttentionLaunch {
    int num_sms = 0;
    int decode_blocks = 0;        // 0: no decode items
    bool full_blocks = false;     // of eight warps, one a multiprocessor; head dimensions up to 128
    int head_dim = 0;
    bool prefill = false;         // the kernel of the prefill items too
    bool wgmma = false;           // by warpgroup instructions, with `map`
    CUtensorMap map = {};         // the layer's cache: boxes of one block of one head
};

Status launch_attention_bf16(cudaStream_t stream, const AttentionArguments& a, const AttentionLaunch& launch);
Status launch_attention_f16(cudaStream_t stream, const AttentionArguments& a, const AttentionLaunch& launch);

}   // namespace takt::cuda
