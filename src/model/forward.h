// Model: one loaded network as a sequence of device operations. Abstract, so that the runtime drives a real network and the sim
// device's hash chain alike. Weights live in device layout; every buffer that a recorded step names is bound once.
// Engine thread only after load. Knows rows, segments and samples; knows nothing of requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/device.h"
#include "kernels/kv_layout.h"
#include "kernels/step_input.h"
#include "model/config.h"

namespace takt {

/// Everything a step reads and writes beside weights and activations. Device addresses, owned by the runtime, fixed for life.
struct StepBuffers {
    StepView in;
    int32_t* slot_tokens = nullptr;         // [num_slots]
    uint16_t* output_counts = nullptr;      // [num_slots][vocab]
    uint8_t* prompt_seen = nullptr;         // [num_slots][vocab]
    void* results = nullptr;                // pinned, two blocks
    size_t result_stride = 0;
    std::vector<void*> kv_layers;           // [num_layers]
    KvLayout kv;
    int32_t max_rows = 0;
    int32_t max_samples = 0;
    int32_t max_work = 0;
    int32_t num_slots = 0;
};

/// What a recorded step is keyed by: padded rows, padded samples, whether every sample is a plain argmax, and whether every segment
/// is one sampled row.
struct StepShape {
    int32_t rows = 0;
    int32_t samples = 0;
    bool greedy = true;
    bool decodes = false;
};

/// For the cost model's first guess.
struct ModelCosts {
    double weight_bytes = 0;            ///< read by every step
    double operations_per_row = 0;      ///< multiply-adds x 2 in the linear layers
    double kv_bytes_per_token = 0;      ///< read a decode row and context token, at 2 bytes an element
    double operations_per_pair = 0;     ///< attention, a query-key pair
};

class Model {
public:
    virtual ~Model() = default;
    [[nodiscard]] virtual const ModelConfig& config() const = 0;
    [[nodiscard]] virtual KvLayout kv_layout(DType type, int32_t block_tokens, int32_t num_blocks) const = 0;
    [[nodiscard]] virtual size_t weight_bytes() const = 0;
    /// Activations and scratch that `bind` will take for these capacities and this cache (its number of blocks is not looked at).
    [[nodiscard]] virtual size_t workspace_bytes(const StepCapacity& capacity, const KvLayout& kv) const = 0;
    /// Most attention work items of a launch within `capacity` (max_work itself is not looked at).
    [[nodiscard]] virtual int32_t max_work(const StepCapacity& capacity, const KvLayout& kv, int32_t max_context) const = 0;
    [[nodiscard]] virtual ModelCosts costs() const = 0;

    /// Takes the activations and scratch; once, before the first enqueue.
    virtual Status bind(const StepBuffers& buffers) = 0;
    /// Fills the attention work list of a host-side step input.
    virtual Status plan(const StepView& host, const StepCapacity& capacity) const = 0;
    /// Queues the whole step, embedding to sampling. Capturable: allocates nothing, reads nothing back.
    virtual Status enqueue(Stream& stream, StepShape shape) = 0;
};

}  // namespace takt
