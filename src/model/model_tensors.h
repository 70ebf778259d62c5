// ModelTensors: the tensors of one network under the names of its parts, as views into mapped files. Plain data.
#pragma once

#include <vector>

#include "kernels/tensor.h"

namespace takt {

/// One layer's tensors. `data` null: the architecture has none.
struct LayerTensors {
    HostTensor attention_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, output, mlp_norm, gate, up, down;
    HostTensor attention_post_norm, mlp_post_norm;
};

struct ModelTensors {
    HostTensor embedding;
    HostTensor final_norm;
    HostTensor head;                 // the embedding itself where tied
    std::vector<LayerTensors> layers;
};

}  // namespace takt
