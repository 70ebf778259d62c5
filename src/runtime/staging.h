// Staging: the pinned host side of a step's inputs and results. A ring of pinned input buffers, one fixed device input buffer
// that recorded graphs name, two pinned result blocks. Fills a launch from a plan; owns no requests. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/step_input.h"
#include "model/forward.h"
#include "runtime/plan.h"
#include "runtime/request.h"

namespace takt {

/// What staging needs to know of the requests that a plan names.
class StepSources {
public:
    virtual ~StepSources() = default;
    [[nodiscard]] virtual const RequestState& request(RequestId id) const = 0;
    /// `slot`: the one that the plan gives the request.
    [[nodiscard]] virtual std::span<const int32_t> block_table(RequestId id, int32_t slot) const = 0;
    /// Which table the slot has: as long as the number stays, its table only grows at the end. 0: not known.
    [[nodiscard]] virtual uint64_t table_number(int32_t slot) const {
        (void)slot;
        return 0;
    }
};

/// The rows of one launch: runs of a plan's segments. A plan within the ladder is one launch; a larger one is several.
struct LaunchRows {
    struct Run {
        int32_t segment = 0;       ///< index in plan.segments
        int32_t row_offset = 0;    ///< rows of the segment before this run
        int32_t num_rows = 0;
        bool samples = false;
    };
    std::vector<Run> runs;         ///< single decode rows first
    int32_t num_rows = 0;
    int32_t num_samples = 0;
};

/// Cuts a plan into launches of at most `max_rows` rows: sampled rows all in the last one, nothing planned between. `out` brings the
/// launches of the plan before, whose memory serves again.
void split_launches(const StepPlan& plan, int32_t max_rows, std::vector<LaunchRows>& out);

class Staging {
public:
    /// Takes all its memory here. `num_inputs`: pinned input buffers, one for each launch that may be in flight; at least 2.
    static Result<Staging> create(Device& device, const StepCapacity& capacity, int32_t num_inputs);
    Staging(Staging&&) = default;
    Staging& operator=(Staging&&) = default;

    [[nodiscard]] const StepInputLayout& layout() const { return layout_; }
    [[nodiscard]] StepView device_view() const { return layout_.view(device_input_.data()); }
    [[nodiscard]] void* results() const { return results_.data(); }
    [[nodiscard]] size_t result_stride() const { return result_stride_; }
    [[nodiscard]] size_t bytes() const { return total_bytes_; }
    [[nodiscard]] const StepResultHeader& result_header(int index) const;
    [[nodiscard]] const SampleResult* result_samples(int index) const;

    /// Fills the next pinned buffer and queues its copy. The attention plan is made by `model`.
    Status stage(Stream& stream, const Model& model, const StepPlan& plan, const LaunchRows& launch,
                 const StepSources& sources, StepShape shape, int result_index);
    /// The requests of all launches so far are gone: others may come under their numbers.
    void forget_requests();

private:
    Staging() : layout_(StepCapacity{}) {}
    /// What a decode row needs of its request, kept by slot: a request's state is spread over memory that is cold by the next step.
    struct Known {
        RequestId id = 0;
        const RequestState* request = nullptr;
        SampleInput sample;
    };
    /// A run's block table: `num_blocks` of it are read.
    struct Table {
        std::span<const int32_t> blocks;
        uint64_t number = 0;
        int32_t num_blocks = 0;
    };
    /// Where one pinned buffer holds a slot's block table, with room to grow: what it held two steps ago need not be written again.
    struct TablePlace {
        uint64_t number = 0;
        int32_t begin = 0, room = 0, filled = 0;
    };
    struct Input {
        Buffer buffer;
        std::vector<TablePlace> places;   // [max_samples], by slot
        int32_t top = 0;                  // of the block-id section: all tables lie below
        int32_t slack = 0;                // entries that a new place has beyond those it needs
    };
    void look_up(const StepPlan& plan, const LaunchRows& launch, const StepSources& sources, Input& input);
    void make_room(Input& input) const;
    static int32_t place_table(Input& input, int32_t* ids, int32_t slot, const Table& table);
    void fill_run(const StepView& v, Input& input, const StepPlan& plan, const LaunchRows::Run& run, const Table& table,
                  int32_t& row) const;
    void fill_sample(const StepView& v, const PlanSegment& segment, const Known& known, int32_t row) const;
    void fill_updates(const StepView& v, const PlanSegment& segment, const LaunchRows::Run& run,
                      const RequestState& request) const;

    StepInputLayout layout_;
    std::vector<Input> inputs_;    // pinned ring
    Buffer device_input_;
    Buffer results_;               // pinned, two blocks
    std::vector<Known> known_;     // [max_samples]: the request last seen in each slot
    std::vector<Table> tables_;    // of the launch at hand, one a run
    size_t result_stride_ = 0;
    size_t total_bytes_ = 0;
    size_t next_input_ = 0;
};

}  // namespace takt
