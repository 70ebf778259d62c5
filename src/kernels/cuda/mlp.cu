// Eight outputs a thread: one 16-byte load of gate, one of up. Bound by memory.
#include "kernels/cuda/mlp.h"
#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/ops_ptx.cuh"

namespace takt::cuda {
namespace {

__device__ __forceinline__ float activate(float gate, bool is_gelu) {
    const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
    return is_gelu ? gate / (1.0f + __expf(-2.0f * inner)) : gate / (1.0f + __expf(-gate));
}

__global__ void __launch_bounds__(256) gate_kernel(const GateCall c) {
    dependents_may_launch();
    wait_for_predecessors();
    const int64_t local = blockIdx.y, row = c.first_row + local;
    if (row >= c.header->num_rows) return;
    const bool is_gelu = c.activation == Activation::gelu_tanh;
    const __nv_bfloat16* in = c.product + local * c.stride;
    const int i = (static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x)) * 8;
    if (i >= c.width) return;
    __nv_bfloat16* out = c.out + row * c.width + i;
    if (!c.interleaved) {
        for (int j = 0; j < 8 && i + j < c.width; ++j) {
            out[j] = __float2bfloat16_rn(activate(__bfloat162float(in[i + j]), is_gelu) *
                                         __bfloat162float(in[c.width + i + j]));
        }
        return;
    }
    const uint4 gates = __ldcg(reinterpret_cast<const uint4*>(in + 2 * i)),
                ups = __ldcg(reinterpret_cast<const uint4*>(in + 2 * i + 8));
    const uint32_t g[4] = {gates.x, gates.y, gates.z, gates.w}, u[4] = {ups.x, ups.y, ups.z, ups.w};
    uint32_t r[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float2 gate = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&g[j]));
        const float2 up = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&u[j]));
        r[j] = pack_pair<__nv_bfloat16>(activate(gate.x, is_gelu) * up.x, activate(gate.y, is_gelu) * up.y);
    }
    *reinterpret_cast<uint4*>(out) = make_uint4(r[0], r[1], r[2], r[3]);
}

}   // namespace

Status run_gate(cudaStream_t stream, const GateCall& c) {
    const dim3 grid(static_cast<unsigned>((c.width + 2047) / 2048), static_cast<unsigned>(c.rows));
    return launch_kernel(stream, grid, dim3(256), 0, Edge::programmatic, gate_kernel, c);
}

}   // namespace takt::cuda
