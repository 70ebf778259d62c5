// The CPU op table, and the choice of kernels by instruction path.
#include "kernels/cpu/ops.h"

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/machine.h"

namespace takt::cpu {

const KernelTable& kernel_table(CpuIsa isa) {
#ifdef TAKT_HAVE_NEON_ISA
    if (isa == CpuIsa::neon) return neon_kernels();
#endif
#ifdef TAKT_HAVE_X86_ISA
    if (isa == CpuIsa::avx512) {
        static const KernelTable& kOfThisCore = avx512_kernels(adds_beside_dots());
        return kOfThisCore;
    }
    if (isa == CpuIsa::avx2) return avx2_kernels();
#endif
    (void)isa;
    return portable_kernels();
}

const OpTable& cpu_op_table() {
    static constexpr OpTable kTable{op_embed,  op_attention_input, op_attention,   op_linear_residual, op_mlp_input,
                                    op_logits, op_sample,          nullptr,        plan_attention,     max_attention_work,
                                    attention_scratch_bytes,       sample_workspace_bytes};
    return kTable;
}

}  // namespace takt::cpu
