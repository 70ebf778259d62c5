// Fills step inputs; see staging.h. Everything here is on the host path between two steps: no allocation once warm.
#include "runtime/staging.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "kernels/assert.h"

namespace takt {
namespace {

constexpr size_t kLineBytes = 64;
constexpr int32_t kTableAlign = 8;   // block tables are padded with the dummy block to a multiple of this
constexpr int32_t kTableSlack = 16;  // entries that a table may grow by before it is written to another place

int32_t round_up(int32_t n, int32_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

void split_launches(const StepPlan& plan, int32_t max_rows, std::vector<LaunchRows>& out) {
    LaunchRows last;
    // The memory of the last plan's: growing it anew took a sixth of the host's time for a step of 256 decode rows.
    if (!out.empty()) last.runs.swap(out.back().runs);
    last.runs.clear();
    out.clear();
    const int32_t num_segments = static_cast<int32_t>(plan.segments.size());
    int32_t last_rows = 0;   // decode rows and each sampling prefill's final row belong to the last launch
    for (const PlanSegment& s : plan.segments) last_rows += s.samples ? 1 : 0;
    TAKT_ASSERT(last_rows <= max_rows);
    int32_t rest = plan.features.rows - last_rows;   // the other rows, in order; as many as fit ride in the last launch
    const int32_t early_total = std::max(0, rest - (max_rows - last_rows));
    int32_t early = early_total;
    for (int32_t i = 0; i < num_segments; ++i) {
        const PlanSegment& s = plan.segments[static_cast<size_t>(i)];
        const int32_t body = s.num_rows - (s.samples ? 1 : 0);
        int32_t done = 0;
        while (done < body && early > 0) {
            if (out.empty() || out.back().num_rows == max_rows) out.emplace_back();
            LaunchRows& launch = out.back();
            const int32_t take = std::min({body - done, early, max_rows - launch.num_rows});
            launch.runs.push_back({i, done, take, false});
            launch.num_rows += take;
            done += take;
            early -= take;
        }
        if (done < s.num_rows) {
            last.runs.push_back({i, done, s.num_rows - done, s.samples});
            last.num_rows += s.num_rows - done;
            last.num_samples += s.samples ? 1 : 0;
        }
    }
    out.push_back(std::move(last));
}

Result<Staging> Staging::create(Device& device, const StepCapacity& capacity, int32_t num_inputs) {
    Staging s;
    s.layout_ = StepInputLayout(capacity);
    s.result_stride_ = step_result_bytes(capacity.max_samples);
    for (int32_t i = 0; i < num_inputs; ++i) {
        Result<Buffer> input = device.alloc(s.layout_.bytes(), MemoryKind::pinned);
        if (!input) return Error{"step inputs: " + input.error()};
        std::memset(input.value().data(), 0, s.layout_.bytes());
        s.inputs_.push_back({std::move(input).value(), std::vector<TablePlace>(static_cast<size_t>(capacity.max_samples)), 0,
                             kTableSlack});
    }
    Result<Buffer> fixed = device.alloc(s.layout_.bytes(), MemoryKind::device);
    if (!fixed) return Error{"step inputs: " + fixed.error()};
    s.device_input_ = std::move(fixed).value();
    Result<Buffer> results = device.alloc(2 * s.result_stride_, MemoryKind::pinned);
    if (!results) return Error{"step results: " + results.error()};
    s.results_ = std::move(results).value();
    std::memset(s.results_.data(), 0, 2 * s.result_stride_);
    s.total_bytes_ = s.layout_.bytes() * (s.inputs_.size() + 1) + 2 * s.result_stride_;
    s.known_.resize(static_cast<size_t>(capacity.max_samples));
    s.tables_.reserve(static_cast<size_t>(capacity.max_segments));
    return s;
}

const StepResultHeader& Staging::result_header(int index) const {
    return *reinterpret_cast<const StepResultHeader*>(results_.as<uint8_t>() + static_cast<size_t>(index) * result_stride_);
}

const SampleResult* Staging::result_samples(int index) const {
    return reinterpret_cast<const SampleResult*>(&result_header(index) + 1);
}

void Staging::forget_requests() { std::fill(known_.begin(), known_.end(), Known{}); }

/// Everything that lies elsewhere is asked for here, in a loop whose turns do not wait for one another.
void Staging::look_up(const StepPlan& plan, const LaunchRows& launch, const StepSources& sources, Input& input) {
    tables_.clear();
    const auto block_tokens = static_cast<int32_t>(plan.block_tokens);
    for (const LaunchRows::Run& run : launch.runs) {
        const PlanSegment& segment = plan.segments[static_cast<size_t>(run.segment)];
        const std::span<const int32_t> blocks = sources.block_table(segment.request, segment.slot);
        const int32_t tokens = segment.token_begin + run.row_offset + run.num_rows;
        const Table table{blocks, sources.table_number(segment.slot), (tokens + block_tokens - 1) / block_tokens};
        TAKT_ASSERT(table.num_blocks <= static_cast<int32_t>(blocks.size()));
        tables_.push_back(table);
        const TablePlace& place = input.places[static_cast<size_t>(segment.slot)];
        const int32_t known = table.number != 0 && place.number == table.number ? std::min(place.filled, table.num_blocks - 1) : 0;
        const auto* line = reinterpret_cast<const char*>(blocks.data() + known);
        for (size_t at = 0; at < static_cast<size_t>(table.num_blocks - known) * sizeof(int32_t); at += kLineBytes) {
            __builtin_prefetch(line + at);
        }
        Known& request = known_[static_cast<size_t>(segment.slot)];
        if (request.id == segment.request) continue;
        const RequestState& state = sources.request(segment.request);
        request = {segment.request, &state, state.sample};
    }
}

/// So that all tables of the launch fit were each to be written to a new place, and what it holds stays near what it must.
void Staging::make_room(Input& input) const {
    int64_t needed = 0, least = 0;
    for (const Table& table : tables_) {
        needed += round_up(table.num_blocks + kTableSlack, kTableAlign);
        least += round_up(table.num_blocks, kTableAlign);
    }
    const int64_t all = layout_.capacity().max_block_ids;
    TAKT_ASSERT(least <= all);
    if (input.top + needed <= all && input.top <= needed + needed / 4) return;
    for (TablePlace& place : input.places) place = {};
    input.top = 0;
    input.slack = needed <= all ? kTableSlack : 0;
}

/// The begin of the slot's table in `ids`, which now holds what the launch reads of it.
int32_t Staging::place_table(Input& input, int32_t* ids, int32_t slot, const Table& table) {
    TablePlace& place = input.places[static_cast<size_t>(slot)];
    const int32_t padded = round_up(table.num_blocks, kTableAlign);
    if (table.number == 0 || place.number != table.number || padded > place.room) {
        place = {table.number, input.top, round_up(table.num_blocks + input.slack, kTableAlign), 0};
        input.top += place.room;
    }
    if (place.filled == table.num_blocks) return place.begin;
    int32_t* const own = ids + place.begin;
    const int32_t from = std::min(place.filled, table.num_blocks);
    std::copy(table.blocks.begin() + from, table.blocks.begin() + table.num_blocks, own + from);
    std::fill(own + table.num_blocks, own + padded, kDummyBlock);
    place.filled = table.num_blocks;
    return place.begin;
}

void Staging::fill_sample(const StepView& v, const PlanSegment& segment, const Known& known, int32_t row) const {
    SampleInput& sample = v.samples[v.header->num_samples++];
    sample = known.sample;
    sample.row = row;
    sample.slot = segment.slot;
    sample.position = segment.token_begin + segment.num_rows;
    sample.bias_begin = v.header->num_biases;
    if (sample.num_biases == 0) return;
    for (const BiasInput& bias : known.request->biases) v.biases[v.header->num_biases++] = bias;
}

void Staging::fill_updates(const StepView& v, const PlanSegment& segment, const LaunchRows::Run& run,
                           const RequestState& request) const {
    const int32_t first = segment.token_begin + run.row_offset;
    auto add = [&](int32_t token, int32_t is_output) {
        v.updates[v.header->num_updates++] = CountUpdate{segment.slot, token, is_output, 0};
    };
    // A request with penalties never takes a cached prefix, so that its rows begin at 0 and pass by here one and all.
    if (first == 0) add(-1, 0);
    for (int32_t i = 0; i < run.num_rows; ++i) {
        add(request.tokens[static_cast<size_t>(first + i)], first + i >= request.num_prompt ? 1 : 0);
    }
}

void Staging::fill_run(const StepView& v, Input& input, const StepPlan& plan, const LaunchRows::Run& run, const Table& table,
                       int32_t& row) const {
    const PlanSegment& segment = plan.segments[static_cast<size_t>(run.segment)];
    const Known& known = known_[static_cast<size_t>(segment.slot)];
    const int32_t first = segment.token_begin + run.row_offset;
    const int32_t block_tokens = static_cast<int32_t>(plan.block_tokens);
    const int32_t index = v.header->num_segments++;
    const int32_t begin = place_table(input, v.block_ids, segment.slot, table);
    v.segments[index] = SegmentInput{row, run.num_rows, first, begin, table.num_blocks, segment.slot, {0, 0}};

    for (int32_t i = 0; i < run.num_rows; ++i) {
        const int32_t position = first + i;
        const int32_t token = segment.is_decode ? ~segment.slot : known.request->tokens[static_cast<size_t>(position)];
        const int32_t kv_slot = table.blocks[static_cast<size_t>(position / block_tokens)] * block_tokens + position % block_tokens;
        v.rows[row + i] = RowInput{token, position, kv_slot, index};
    }
    if (segment.is_decode) {
        ++v.header->num_decode_segments;
        v.header->kv_read_tokens += first + 1;
    } else {
        const int64_t rows = run.num_rows;
        v.header->prefill_pairs += rows * first + rows * (rows + 1) / 2;
    }
    if (known.sample.uses_counts != 0 && !segment.is_decode) fill_updates(v, segment, run, *known.request);
    row += run.num_rows;
    if (run.samples) fill_sample(v, segment, known, row - 1);
}

Status Staging::stage(Stream& stream, const Model& model, const StepPlan& plan, const LaunchRows& launch,
                      const StepSources& sources, StepShape shape, int result_index) {
    Input& input = inputs_[next_input_];
    next_input_ = (next_input_ + 1) % inputs_.size();
    const StepView v = layout_.view(input.buffer.data());
    *v.header = StepHeader{};
    v.header->result_index = result_index;
    v.header->step = plan.step;
    int32_t row = 0;
    look_up(plan, launch, sources, input);
    make_room(input);
    for (size_t i = 0; i < launch.runs.size(); ++i) fill_run(v, input, plan, launch.runs[i], tables_[i], row);
    v.header->num_rows = row;
    for (int32_t i = row; i < shape.rows; ++i) v.rows[i] = RowInput{0, 0, kDummyBlock, -1};
    for (int32_t i = v.header->num_samples; i < shape.samples; ++i) v.samples[i] = SampleInput{};
    if (Status s = model.plan(v, layout_.capacity()); !s) return s;

    StepInputLayout::Range ranges[6];
    const int num_ranges = layout_.used_ranges(*v.header, shape.rows, shape.samples, input.top, ranges);
    auto* from = input.buffer.as<uint8_t>();
    auto* to = device_input_.as<uint8_t>();
    for (int i = 0; i < num_ranges; ++i) {
        if (Status s = stream.copy(to + ranges[i].begin, from + ranges[i].begin, ranges[i].bytes); !s) return s;
    }
    return {};
}

}  // namespace takt
