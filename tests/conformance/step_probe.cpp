// Memory, input and read-back of the probe; see step_probe.h.
#include "conformance/step_probe.h"

#include <cstring>

#include "kernels/cpu/kv_place.h"

namespace takt::conformance {
namespace {

constexpr int32_t kDims = 64;     // of the one head, and of the hidden state
constexpr int32_t kBlockTokens = 16;
constexpr int32_t kVocab = 256;

StepCapacity probe_capacity() {
    StepCapacity c;
    c.max_rows = StepProbe::kRows;
    c.max_segments = c.max_samples = StepProbe::kRows;
    c.max_work = 16;
    c.max_block_ids = 64;
    c.max_biases = c.max_updates = 8;
    return c;
}

bool is_sim(const Device& device) { return device.caps().kind == DeviceKind::sim; }

KvLayout probe_kv(const Device& device) {
    KvLayout kv;
    kv.type = device.caps().kv_type;
    kv.num_layers = kv.num_kv_heads = 1;
    kv.head_dim = is_sim(device) ? 8 : kDims;
    kv.block_tokens = kBlockTokens;
    kv.num_blocks = StepProbe::kBlocks;
    return kv;
}

}  // namespace

StepProbe::StepProbe(Device& device) : device_(device), kv_(probe_kv(device)), layout_(probe_capacity()) {
    const auto take = [&](size_t bytes, MemoryKind kind) { return device_.alloc(bytes, kind).value(); };
    host_ = take(layout_.bytes(), MemoryKind::pinned);
    std::memset(host_.data(), 0, host_.bytes());
    input_ = take(layout_.bytes(), MemoryKind::device);
    cache_ = take(kv_.layer_bytes(), MemoryKind::device);
    read_back_ = take(kv_.layer_bytes(), MemoryKind::pinned);
    hidden_ = take(kRows * kDims * sizeof(float), MemoryKind::device);
    q_ = take(kRows * kDims * sizeof(float), MemoryKind::device);
    results_ = take(2 * step_result_bytes(kRows), MemoryKind::pinned);
    slot_tokens_ = take(kRows * sizeof(int32_t), MemoryKind::device);
    if (is_sim(device_)) return;
    std::vector<float> weights(size_t{3} * kDims * kDims, 0.5f);
    const HostTensor parts[] = {{weights.data(), DType::f32, 3 * kDims, kDims}};
    qkv_ = device_.make_linear(parts, LinearKind::stacked).value();
    norm_ = device_.make_vector({weights.data(), DType::f32, 1, kDims}).value();
    frequencies_ = device_.make_vector({weights.data(), DType::f32, 1, kDims / 2}).value();
}

void StepProbe::set_rows(const std::vector<int32_t>& kv_slots) {
    const StepView v = layout_.view(host_.data());
    *v.header = StepHeader{};
    v.header->num_rows = v.header->num_segments = static_cast<int32_t>(kv_slots.size());
    for (int32_t r = 0; r < kRows; ++r) v.rows[r] = RowInput{0, 0, kDummyBlock, -1};
    for (size_t r = 0; r < kv_slots.size(); ++r) {
        const auto row = static_cast<int32_t>(r);
        v.rows[r] = RowInput{row + 1, 0, kv_slots[r], row};
        v.segments[r] = SegmentInput{row, 1, 0, row * 8, 1, row, {0, 0}};
        for (int b = 0; b < 8; ++b) v.block_ids[row * 8 + b] = b == 0 ? kv_slots[r] / kBlockTokens : kDummyBlock;
    }
}

Status StepProbe::queue_input(Stream& stream) { return stream.copy(input_.data(), host_.data(), layout_.bytes()); }

Status StepProbe::queue_clear(Stream& stream) {
    if (Status s = stream.fill(hidden_.data(), kUntouched, hidden_.bytes()); !s) return s;
    return stream.fill(cache_.data(), kUntouched, cache_.bytes());
}

Status StepProbe::queue_step(Stream& stream) {
    if (is_sim(device_)) {
        SimStepParams p;
        p.in = layout_.view(input_.data());
        p.rows = kRows;
        p.kv = kv_;
        p.kv_layer = cache_.data();
        p.vocab = kVocab;
        p.slot_tokens = slot_tokens_.as<int32_t>();
        p.results = results_.data();
        p.result_stride = step_result_bytes(kRows);
        return device_.ops().sim_step(stream, p);
    }
    AttentionInputParams p;
    p.in = layout_.view(input_.data());
    p.rows = kRows;
    p.hidden = hidden_.data();
    p.norm.weight = norm_.as<float>();
    p.qkv = qkv_.get();
    p.rope = {RopeStyle::half, frequencies_.as<float>(), 1.0f};
    p.num_heads = 1;
    p.kv = kv_;
    p.kv_layer = cache_.data();
    p.q = q_.data();
    return device_.ops().attention_input(stream, p);
}

std::vector<int32_t> StepProbe::written_slots(Stream& stream) {
    if (!stream.copy(read_back_.data(), cache_.data(), cache_.bytes()).ok() || !stream.synchronize().ok()) return {-1};
    std::vector<int32_t> written;
    const auto* bytes = read_back_.as<uint8_t>();
    for (int32_t slot = 0; slot < kBlocks * kBlockTokens; ++slot) {
        const int32_t block = slot / kBlockTokens, token = slot % kBlockTokens;
        const bool is_cpu = device_.caps().kind == DeviceKind::cpu;   // it orders the cache in its own way
        const size_t element = dtype_bytes(kv_.type, 1);
        const size_t begin = static_cast<size_t>(block) * kv_.head_stride();
        const uint8_t* value = bytes + (is_cpu ? cpu::value_begin(kv_, 0) + begin + static_cast<size_t>(token) * kv_.token_stride()
                                               : kv_.offset(block, 1, 0, token));
        bool touched = false;
        for (size_t i = 0; i < kv_.token_stride(); ++i) touched |= value[i] != kUntouched;
        for (int32_t d = 0; d < kv_.head_dim; ++d) {
            const size_t in_block = cpu::key_offset(kBlockTokens, kv_.head_dim, token, d) * element;
            const uint8_t* key = bytes + (is_cpu ? cpu::key_begin(kv_, 0) + begin + in_block
                                                 : kv_.offset(block, 0, 0, token) + static_cast<size_t>(d) * element);
            for (size_t i = 0; i < element; ++i) touched |= key[i] != kUntouched;
        }
        if (touched) written.push_back(slot);
    }
    return written;
}

}  // namespace takt::conformance
