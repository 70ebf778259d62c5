// Builds the input of one step for GPU checks and benches: segments with shuffled block tables, rows, samples, the
// attention work list; uploads it. Host code.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "device_array.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/kv_layout.h"
#include "kernels/step_input.h"

namespace takt::check {

struct SegmentShape {
    int32_t position_begin = 0;
    int32_t num_rows = 1;
};

class StepBuilder {
public:
    /// `layout.num_blocks` is set to what the segments need. `padding`: extra padded rows.
    StepBuilder(KvLayout& layout, const std::vector<SegmentShape>& shapes, int num_heads, int window,
                bool deterministic, int num_sms, std::mt19937_64& random, int padding = 0) {
        int32_t rows = padding, ids = 0, blocks = 1;
        for (const SegmentShape& s : shapes) {
            rows += s.num_rows;
            const int32_t n = (s.position_begin + s.num_rows + layout.block_tokens - 1) / layout.block_tokens;
            ids += (n + 7) / 8 * 8;
            blocks += n;
        }
        layout.num_blocks = blocks;
        capacity_.max_rows = rows;
        capacity_.max_segments = capacity_.max_samples = static_cast<int32_t>(shapes.size());
        capacity_.max_block_ids = ids;
        capacity_.max_biases = capacity_.max_updates = 4096;
        capacity_.max_work = cuda::max_attention_work(layout, num_heads, rows, capacity_.max_segments, num_sms);
        step_ = std::make_unique<StepInputLayout>(capacity_);
        host_.resize(step_->bytes());
        view_ = step_->view(host_.data());
        fill(layout, shapes, random);
        AttentionPlanParams plan;
        plan.host = view_;
        plan.capacity = capacity_;
        plan.num_heads = num_heads;
        plan.kv = layout;
        plan.window = window;
        plan.deterministic = deterministic;
        require(cuda::plan_attention(plan, num_sms), "planning attention");
        device_ = std::make_unique<DeviceArray<uint8_t>>(host_.size());
        upload();
    }

    void upload() { device_->set(host_); }
    [[nodiscard]] StepView host() const { return view_; }
    [[nodiscard]] StepView device() const { return step_->view(device_->data()); }
    [[nodiscard]] const StepCapacity& capacity() const { return capacity_; }
    [[nodiscard]] int32_t padded_rows() const { return capacity_.max_rows; }
    /// Whether every segment has one row.
    [[nodiscard]] bool decodes() const {
        const SegmentInput* s = view_.segments;
        return std::all_of(s, s + view_.header->num_segments, [](const SegmentInput& i) { return i.num_rows == 1; });
    }
    /// Byte offset of a position's keys (kv 0) or values (kv 1) in the layer.
    [[nodiscard]] size_t cache_offset(const KvLayout& layout, int32_t segment, int32_t position, int kv,
                                      int head) const {
        const int32_t block = view_.block_ids[view_.segments[segment].table_begin + position / layout.block_tokens];
        return layout.offset(block, kv, head, position % layout.block_tokens);
    }

private:
    void fill(const KvLayout& layout, const std::vector<SegmentShape>& shapes, std::mt19937_64& random) {
        *view_.header = StepHeader{};
        std::vector<int32_t> free(static_cast<size_t>(layout.num_blocks - 1));
        std::iota(free.begin(), free.end(), 1);
        std::shuffle(free.begin(), free.end(), random);
        int32_t row = 0, id = 0;
        size_t next = 0;
        for (size_t i = 0; i < shapes.size(); ++i) {
            SegmentInput& s = view_.segments[i];
            s = SegmentInput{};
            s.row_begin = row;
            s.num_rows = shapes[i].num_rows;
            s.position_begin = shapes[i].position_begin;
            s.table_begin = id;
            s.num_blocks = (s.position_begin + s.num_rows + layout.block_tokens - 1) / layout.block_tokens;
            s.slot = static_cast<int32_t>(i);
            for (int32_t b = 0; b < (s.num_blocks + 7) / 8 * 8; ++b)
                view_.block_ids[id++] = b < s.num_blocks ? free[next++] : kDummyBlock;
            for (int32_t r = 0; r < s.num_rows; ++r, ++row) {
                const int32_t position = s.position_begin + r;
                const int32_t block = view_.block_ids[s.table_begin + position / layout.block_tokens];
                view_.rows[row] = {static_cast<int32_t>(random() % 1000), position,
                                   block * layout.block_tokens + position % layout.block_tokens,
                                   static_cast<int32_t>(i)};
            }
            SampleInput& sample = view_.samples[i];
            sample = SampleInput{};
            sample.row = row - 1;
            sample.slot = s.slot;
            sample.position = s.position_begin + s.num_rows;
        }
        view_.header->num_rows = row;
        view_.header->num_segments = view_.header->num_samples = static_cast<int32_t>(shapes.size());
        for (; row < capacity_.max_rows; ++row) view_.rows[row] = RowInput{};
    }

    StepCapacity capacity_;
    std::unique_ptr<StepInputLayout> step_;
    std::vector<uint8_t> host_;
    StepView view_;
    std::unique_ptr<DeviceArray<uint8_t>> device_;
};

}   // namespace takt::check
