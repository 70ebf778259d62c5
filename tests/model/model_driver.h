// ModelDriver: one sequence on a Model and a device, without an engine: fills the step input by hand, enqueues, waits,
// reads the results. For truth tests and benches. Test code only; one thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/device_factory.h"
#include "kernels/ops.h"
#include "model/llama.h"
#include "model/model_file.h"

namespace takt {

class ModelDriver {
public:
    /// Error text in `error` where loading or memory failed. `num_tokens`: see LoadOptions.
    ModelDriver(const std::string& path, const CpuDeviceOptions& options, TimeSource time, DType kv_type,
                int32_t max_context, int32_t max_rows = 512, int32_t max_samples = 64, int32_t num_tokens = 0) {
        Result<std::unique_ptr<Device>> device = make_cpu_device(options, time);
        if (!device) {
            fail(device.error());
            return;
        }
        device_ = std::move(device).value();
        Result<std::unique_ptr<ModelFile>> file = ModelFile::open(path);
        if (!file) {
            fail(file.error());
            return;
        }
        LoadOptions load;
        load.num_tokens = num_tokens;
        Result<std::unique_ptr<Model>> model = LlamaModel::load(*device_, *file.value(), load);
        if (!model) {
            fail(model.error());
            return;
        }
        model_ = std::move(model).value();
        Result<std::unique_ptr<Stream>> stream = device_->stream(0);
        if (!stream) {
            fail(stream.error());
            return;
        }
        stream_ = std::move(stream).value();
        bind(kv_type, max_context, max_rows, max_samples);
    }

    [[nodiscard]] Model& model() { return *model_; }
    [[nodiscard]] int32_t position() const { return position_; }
    void restart() { position_ = 0; }

    /// Appends `tokens` in chunks of at most `chunk` rows; samples greedily after each of the last `num_samples`.
    std::vector<SampleResult> feed(std::span<const int32_t> tokens, int32_t num_samples, int32_t chunk,
                                   int32_t num_top = -1) {
        std::vector<SampleResult> out;
        const auto total = static_cast<int32_t>(tokens.size());
        for (int32_t begin = 0; begin < total && error.empty(); begin += chunk) {
            const int32_t rows = std::min(chunk, total - begin);
            const int32_t sampled_from = std::max(total - num_samples - begin, 0);
            const auto part = tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(rows));
            step(part, std::min(sampled_from, rows), num_top, out);
        }
        return out;
    }

    std::string error;

private:
    static constexpr int32_t kBlockTokens = 16;

    void fail(const std::string& text) {
        if (error.empty()) error = text;
    }
    Buffer take(size_t bytes, MemoryKind kind) {
        Result<Buffer> buffer = device_->alloc(std::max<size_t>(bytes, 64), kind);
        if (!buffer) {
            fail(buffer.error());
            return {};
        }
        return std::move(buffer).value();
    }

    void bind(DType kv_type, int32_t max_context, int32_t max_rows, int32_t max_samples) {
        num_blocks_ = (max_context + kBlockTokens - 1) / kBlockTokens;
        StepCapacity c;
        c.max_rows = max_rows;
        c.max_segments = 1;
        c.max_samples = max_samples;
        c.max_block_ids = (num_blocks_ + 7) / 8 * 8;
        c.max_work = model_->max_work(c, model_->kv_layout(kv_type, kBlockTokens, 1), max_context);
        layout_.emplace(c);
        input_ = take(layout_->bytes(), MemoryKind::device);
        host_ = take(layout_->bytes(), MemoryKind::pinned);
        slots_ = take(64, MemoryKind::device);
        results_ = take(2 * step_result_bytes(max_samples), MemoryKind::pinned);
        if (!error.empty()) return;
        std::memset(host_.data(), 0, layout_->bytes());
        StepBuffers b;
        b.in = layout_->view(input_.data());
        b.slot_tokens = slots_.as<int32_t>();
        b.results = results_.data();
        b.result_stride = step_result_bytes(max_samples);
        b.kv = model_->kv_layout(kv_type, kBlockTokens, num_blocks_ + 1);
        for (int32_t layer = 0; layer < b.kv.num_layers && error.empty(); ++layer) {
            kv_.push_back(take(b.kv.layer_bytes(), MemoryKind::device));
            b.kv_layers.push_back(kv_.back().data());
        }
        b.max_rows = c.max_rows;
        b.max_samples = c.max_samples;
        b.max_work = c.max_work;
        b.num_slots = 1;
        if (error.empty()) check(model_->bind(b), "bind");
    }

    void check(Status status, const char* what) {
        if (!status) fail(std::string(what) + ": " + status.message);
    }

    void fill(std::span<const int32_t> tokens, int32_t first_sample, int32_t num_top) {
        StepView v = layout_->view(host_.data());
        const auto rows = static_cast<int32_t>(tokens.size());
        *v.header = StepHeader{};
        v.header->num_rows = rows;
        v.header->num_segments = 1;
        v.header->num_samples = rows - first_sample;
        v.header->num_decode_segments = rows == 1 ? 1 : 0;
        const int32_t blocks = (position_ + rows + kBlockTokens - 1) / kBlockTokens;
        v.segments[0] = SegmentInput{0, rows, position_, 0, blocks, 0, {0, 0}};
        for (int32_t i = 0; i < layout_->capacity().max_block_ids; ++i) {
            v.block_ids[i] = i < blocks ? i + 1 : kDummyBlock;
        }
        for (int32_t r = 0; r < rows; ++r) {
            const int32_t p = position_ + r;
            const int32_t slot = (p / kBlockTokens + 1) * kBlockTokens + p % kBlockTokens;   // block 0 is the dummy
            v.rows[r] = RowInput{tokens[static_cast<size_t>(r)], p, slot, 0};
        }
        for (int32_t s = 0; s < rows - first_sample; ++s) {
            v.samples[s] = SampleInput{};
            v.samples[s].row = first_sample + s;
            v.samples[s].position = position_ + first_sample + s + 1;
            v.samples[s].num_logprobs = num_top;
        }
    }

    void step(std::span<const int32_t> tokens, int32_t first_sample, int32_t num_top, std::vector<SampleResult>& out) {
        const auto rows = static_cast<int32_t>(tokens.size());
        const int32_t samples = rows - first_sample;
        if (position_ + rows > num_blocks_ * kBlockTokens || rows > layout_->capacity().max_rows ||
            samples > layout_->capacity().max_samples) {
            return fail("the step does not fit the driver");
        }
        fill(tokens, first_sample, num_top);
        check(model_->plan(layout_->view(host_.data()), layout_->capacity()), "plan");
        if (!error.empty()) return;
        check(stream_->copy(input_.data(), host_.data(), layout_->bytes()), "copy");
        check(model_->enqueue(*stream_, StepShape{rows, samples, num_top < 0}), "enqueue");
        check(stream_->synchronize(), "synchronize");
        position_ += rows;
        const auto* results = reinterpret_cast<const SampleResult*>(results_.as<uint8_t>() + sizeof(StepResultHeader));
        out.insert(out.end(), results, results + samples);
    }

    std::unique_ptr<Device> device_;   // destroyed last
    std::unique_ptr<Model> model_;
    std::unique_ptr<Stream> stream_;
    std::optional<StepInputLayout> layout_;
    Buffer input_, host_, slots_, results_;
    std::vector<Buffer> kv_;
    int32_t num_blocks_ = 0;
    int32_t position_ = 0;
};

}  // namespace takt
