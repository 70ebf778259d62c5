// Staging: how a plan is cut into launches, and what a launch's rows, tables, samples, biases and count updates look like on the
// device.
#include "runtime/staging.h"

#include <map>
#include <random>

#include "catch.h"
#include "kernels/device_factory.h"
#include "model/model_file.h"
#include "model/sim_model.h"
#include "runtime/clock.h"

using namespace takt;

namespace {

StepPlan plan_of(const std::vector<PlanSegment>& segments) {
    StepPlan plan;
    plan.step = 5;
    plan.block_tokens = 4;
    plan.segments = segments;
    for (const PlanSegment& s : segments) {
        plan.features.rows += s.num_rows;
        plan.num_samples += s.samples ? 1 : 0;
    }
    return plan;
}

PlanSegment decode(RequestId request, int32_t slot, int32_t position) { return {request, slot, position, 1, true, true}; }
PlanSegment prefill(RequestId request, int32_t slot, int32_t begin, int32_t rows, bool samples) {
    return {request, slot, begin, rows, samples, false};
}

/// Requests and block tables by id.
class Sources final : public StepSources {
public:
    Sources() : tokenizer_(make_tokenizer(byte_tokenizer_spec()).value()) {}
    RequestState& add(RequestId id, std::vector<int32_t> tokens, int32_t num_outputs, std::vector<int32_t> table) {
        PreparedRequest prepared;
        prepared.request.max_tokens = 10;
        std::vector<int32_t> outputs(tokens.end() - num_outputs, tokens.end());
        tokens.resize(tokens.size() - static_cast<size_t>(num_outputs));
        prepared.tokens = std::move(tokens);
        auto state = std::make_shared<RequestState>(id, std::move(prepared), Detokenizer(tokenizer_, StopStrings()),
                                                    std::make_shared<TokenStream>(net::any_io_executor(), [] {}));
        state->tokens.insert(state->tokens.end(), outputs.begin(), outputs.end());
        tables_[id] = std::move(table);
        return *(requests_[id] = std::move(state));
    }
    [[nodiscard]] const RequestState& request(RequestId id) const override { return *requests_.at(id); }
    [[nodiscard]] std::span<const int32_t> block_table(RequestId id, int32_t) const override { return tables_.at(id); }
    [[nodiscard]] uint64_t table_number(int32_t slot) const override { return numbers[slot]; }

    uint64_t numbers[4] = {};   // 0: not known

private:
    Tokenizer tokenizer_;
    std::map<RequestId, std::shared_ptr<RequestState>> requests_;
    std::map<RequestId, std::vector<int32_t>> tables_;
};

struct Fixture {
    VirtualClock clock;
    std::unique_ptr<Device> device = make_sim_device({}, clock.source()).value();
    std::unique_ptr<Stream> stream = device->stream(0).value();
    SimModel model{*device, 257, 1024, -1};
    Staging staging = Staging::create(*device, StepCapacity{16, 8, 4, 1, 256, 16, 32}, 2).value();
    Sources sources;

    /// Stages a plan that is one launch and returns what the device then sees.
    StepView stage(const StepPlan& plan, StepShape shape, int result_index = 0) {
        std::vector<LaunchRows> launches;
        split_launches(plan, 16, launches);
        REQUIRE(launches.size() == 1);
        REQUIRE(staging.stage(*stream, model, plan, launches[0], sources, shape, result_index));
        const Event event = stream->record();
        while (!stream->ready(event)) {
            clock.advance_to(clock.now_ns() + 1'000'000);
            device->poll(-1);
        }
        return staging.device_view();
    }
};

}  // namespace

TEST_CASE("a plan within the ladder is one launch with its segments in order") {
    std::vector<LaunchRows> launches;
    split_launches(plan_of({decode(1, 0, 9), decode(2, 1, 3), prefill(3, 2, 0, 6, true), prefill(4, 3, 4, 8, false)}), 16, launches);
    REQUIRE(launches.size() == 1);
    CHECK(launches[0].num_rows == 16);
    CHECK(launches[0].num_samples == 3);
    REQUIRE(launches[0].runs.size() == 4);
    CHECK(launches[0].runs[3].segment == 3);
    CHECK_FALSE(launches[0].runs[3].samples);
}

TEST_CASE("the launches of a plan take the memory of the plan before") {
    std::vector<PlanSegment> segments;
    for (int32_t i = 0; i < 64; ++i) segments.push_back(decode(static_cast<RequestId>(i + 1), i, 7));
    const StepPlan plan = plan_of(segments);
    std::vector<LaunchRows> launches;
    split_launches(plan, 64, launches);
    const auto* memory = launches[0].runs.data();
    split_launches(plan, 64, launches);
    REQUIRE(launches.size() == 1);
    CHECK(launches[0].runs.data() == memory);
    CHECK(launches[0].runs.size() == 64);
    CHECK(launches[0].num_samples == 64);
}

TEST_CASE("a larger plan: every row once and in order, sampled rows all in the last launch") {
    std::mt19937 random(1);
    std::vector<LaunchRows> launches;
    for (int round = 0; round < 3000; ++round) {
        const auto max_rows = static_cast<int32_t>(8 + random() % 60);
        std::vector<PlanSegment> segments;
        const auto num_decode = static_cast<int32_t>(random() % 5);
        for (int32_t i = 0; i < num_decode; ++i) segments.push_back(decode(static_cast<RequestId>(i + 1), i, 7));
        for (int32_t i = 0; i < static_cast<int32_t>(1 + random() % 3); ++i) {
            const auto num_rows = static_cast<int32_t>(1 + random() % 200);
            segments.push_back(prefill(static_cast<RequestId>(10 + i), 5 + i, 0, num_rows, random() % 2 == 0));
        }
        const StepPlan plan = plan_of(segments);
        split_launches(plan, max_rows, launches);   // over what the round before left there
        std::vector<int32_t> done(segments.size(), 0);
        for (size_t l = 0; l < launches.size(); ++l) {
            int32_t rows = 0, samples = 0;
            for (const LaunchRows::Run& run : launches[l].runs) {
                const PlanSegment& segment = segments[static_cast<size_t>(run.segment)];
                REQUIRE(run.row_offset == done[static_cast<size_t>(run.segment)]);
                REQUIRE(run.num_rows > 0);
                done[static_cast<size_t>(run.segment)] += run.num_rows;
                rows += run.num_rows;
                samples += run.samples ? 1 : 0;
                if (run.samples) REQUIRE(l + 1 == launches.size());
                if (run.samples) REQUIRE(run.row_offset + run.num_rows == segment.num_rows);
                if (segment.is_decode) REQUIRE(l + 1 == launches.size());
            }
            REQUIRE(rows == launches[l].num_rows);
            REQUIRE(samples == launches[l].num_samples);
            REQUIRE(rows <= max_rows);
            REQUIRE(rows > 0);
        }
        REQUIRE(launches.back().num_samples == plan.num_samples);
        for (size_t i = 0; i < segments.size(); ++i) REQUIRE(done[i] == segments[i].num_rows);
    }
}

TEST_CASE("rows carry token, position and KV slot; tables are padded with the dummy block") {
    Fixture f;
    f.sources.add(1, {10, 11, 12, 13, 14, 15}, 1, {7, 3});
    f.sources.add(2, {20, 21, 22, 23, 24, 25, 26, 27, 28}, 0, {4, 9, 5});
    const StepView v = f.stage(plan_of({decode(1, 2, 5), prefill(2, 0, 3, 6, true)}), {8, 2, true}, 1);
    CHECK(v.header->step == 5);
    CHECK(v.header->result_index == 1);
    CHECK(v.header->num_rows == 7);
    CHECK(v.header->num_segments == 2);
    CHECK(v.header->num_decode_segments == 1);
    CHECK(v.header->num_samples == 2);
    CHECK(v.header->kv_read_tokens == 6);
    CHECK(v.header->prefill_pairs == 6 * 3 + 21);

    CHECK(v.rows[0].token == ~2);   // decode: the slot's last token, read on the device
    CHECK(v.rows[0].position == 5);
    CHECK(v.rows[0].kv_slot == 3 * 4 + 1);
    CHECK(v.rows[0].segment == 0);
    const int32_t slots[] = {4 * 4 + 3, 9 * 4, 9 * 4 + 1, 9 * 4 + 2, 9 * 4 + 3, 5 * 4};
    for (int i = 0; i < 6; ++i) {
        INFO(i);
        CHECK(v.rows[1 + i].token == 23 + i);
        CHECK(v.rows[1 + i].position == 3 + i);
        CHECK(v.rows[1 + i].kv_slot == slots[i]);
        CHECK(v.rows[1 + i].segment == 1);
    }
    CHECK(v.rows[7].segment == -1);   // padding writes to the dummy block
    CHECK(v.rows[7].kv_slot == kDummyBlock);

    CHECK(v.segments[0].row_begin == 0);
    CHECK(v.segments[0].num_blocks == 2);
    CHECK(v.segments[1].row_begin == 1);
    CHECK(v.segments[1].num_rows == 6);
    CHECK(v.segments[1].position_begin == 3);
    CHECK(v.segments[1].num_blocks == 3);
    CHECK(v.segments[1].table_begin % 8 == 0);
    const int32_t* table = v.block_ids + v.segments[1].table_begin;
    CHECK(std::vector<int32_t>(table, table + 8) ==
          std::vector<int32_t>{4, 9, 5, kDummyBlock, kDummyBlock, kDummyBlock, kDummyBlock, kDummyBlock});

    CHECK(v.samples[0].row == 0);
    CHECK(v.samples[0].slot == 2);
    CHECK(v.samples[0].position == 6);
    CHECK(v.samples[1].row == 6);
    CHECK(v.samples[1].position == 9);
}

TEST_CASE("tables that grow, are given up and opened anew stand on the device as they are") {
    Fixture f;
    std::mt19937 random(3);
    struct Sequence {
        std::vector<int32_t> table;
        int32_t position = 0;
    } sequences[4];
    uint64_t opened = 0;
    int32_t block = 1;
    for (int round = 0; round < 4000; ++round) {
        std::vector<PlanSegment> segments;
        for (int32_t slot = 0; slot < 4; ++slot) {
            Sequence& s = sequences[slot];
            if (s.table.empty() || s.position >= 255 || random() % 97 == 0) {   // another request: another table under the same slot
                s = {{}, static_cast<int32_t>(random() % 200)};
                f.sources.numbers[slot] = slot == 3 ? 0 : ++opened;
            }
            while (static_cast<int32_t>(s.table.size()) * 4 <= s.position) s.table.push_back(block++ % 1000 + 1);
            if (slot == 3 && random() % 2 == 0) s.table[s.table.size() / 2] = block++ % 1000 + 1;   // nobody said that it stays
            if (random() % 5 > 0) segments.push_back(decode(static_cast<RequestId>(slot + 1), slot, s.position++));
        }
        if (segments.empty()) continue;
        for (int32_t slot = 0; slot < 4; ++slot) {
            const int32_t position = sequences[slot].position;
            while (static_cast<int32_t>(sequences[slot].table.size()) * 4 <= position) sequences[slot].table.push_back(block++ % 1000 + 1);
            f.sources.add(static_cast<RequestId>(slot + 1), {1, 2}, 0, sequences[slot].table);
        }
        const StepView v = f.stage(plan_of(segments), {4, 4, true});
        REQUIRE(v.header->num_segments == static_cast<int32_t>(segments.size()));
        for (int32_t i = 0; i < v.header->num_segments; ++i) {
            const SegmentInput& g = v.segments[i];
            const std::vector<int32_t>& table = sequences[g.slot].table;
            REQUIRE(g.num_blocks == g.position_begin / 4 + 1);
            REQUIRE(g.table_begin % 8 == 0);
            REQUIRE(g.table_begin + (g.num_blocks + 7) / 8 * 8 <= 256);
            for (int32_t b = 0; b < (g.num_blocks + 7) / 8 * 8; ++b) {
                REQUIRE(v.block_ids[g.table_begin + b] == (b < g.num_blocks ? table[static_cast<size_t>(b)] : kDummyBlock));
            }
            for (int32_t j = 0; j < i; ++j) {
                const SegmentInput& other = v.segments[j];
                REQUIRE((g.table_begin + g.num_blocks <= other.table_begin || other.table_begin + other.num_blocks <= g.table_begin));
            }
        }
    }
}

TEST_CASE("biases and penalty counts go along, a request's own and no one else's") {
    Fixture f;
    RequestState& counted = f.sources.add(1, {10, 11, 12, 13}, 1, {1});
    counted.sample.uses_counts = 1;
    counted.biases = {{3, 1.5f}, {4, -2.0f}};
    counted.sample.num_biases = 2;
    RequestState& other = f.sources.add(2, {20, 21}, 0, {2});
    other.biases = {{5, 0.5f}};
    other.sample.num_biases = 1;
    const StepView v = f.stage(plan_of({prefill(1, 3, 0, 4, true), prefill(2, 1, 0, 2, true)}), {8, 2, false});
    CHECK(v.header->num_biases == 3);
    CHECK(v.samples[0].bias_begin == 0);
    CHECK(v.samples[0].num_biases == 2);
    CHECK(v.samples[1].bias_begin == 2);
    CHECK(v.biases[1].token == 4);
    CHECK(v.biases[2].bias == 0.5f);
    REQUIRE(v.header->num_updates == 5);   // a clearing, then the four tokens; the last one was an output (recomputed)
    CHECK(v.updates[0].token == -1);
    for (int i = 0; i < 4; ++i) {
        CHECK(v.updates[1 + i].slot == 3);
        CHECK(v.updates[1 + i].token == 10 + i);
        CHECK(v.updates[1 + i].is_output == (i == 3 ? 1 : 0));
    }
}

TEST_CASE("a later slice of a prompt clears no counts, and unused samples are marked") {
    Fixture f;
    RequestState& counted = f.sources.add(1, {10, 11, 12, 13, 14, 15}, 0, {1, 2});
    counted.sample.uses_counts = 1;
    const StepView v = f.stage(plan_of({prefill(1, 0, 4, 2, true)}), {4, 4, false});
    REQUIRE(v.header->num_updates == 2);
    CHECK(v.updates[0].token == 14);
    CHECK(v.samples[0].row == 1);
    for (int i = 1; i < 4; ++i) CHECK(v.samples[i].row == -1);
}

TEST_CASE("the pinned inputs take turns: the one before is not rewritten under its copy") {
    Fixture f;
    f.sources.add(1, {10, 11, 12, 13}, 0, {1});
    f.sources.add(2, {20, 21, 22, 23}, 0, {2});
    std::vector<LaunchRows> launches;
    const StepPlan first = plan_of({prefill(1, 0, 0, 4, false)});
    const StepPlan second = plan_of({prefill(2, 1, 0, 4, false)});
    split_launches(first, 16, launches);
    // Both queued before either has run; the device sees the second's rows last, and whole.
    REQUIRE(f.staging.stage(*f.stream, f.model, first, launches[0], f.sources, {4, 0, true}, 0));
    Buffer between = f.device->alloc(64, MemoryKind::pinned).value();
    REQUIRE(f.stream->copy(between.data(), f.staging.device_view().rows, 4 * sizeof(RowInput)));
    split_launches(second, 16, launches);
    REQUIRE(f.staging.stage(*f.stream, f.model, second, launches[0], f.sources, {4, 0, true}, 1));
    const Event event = f.stream->record();
    while (!f.stream->ready(event)) {
        f.clock.advance_to(f.clock.now_ns() + 1'000'000);
        f.device->poll(-1);
    }
    for (int i = 0; i < 4; ++i) {
        CHECK(between.as<RowInput>()[i].token == 10 + i);
        CHECK(f.staging.device_view().rows[i].token == 20 + i);
    }
}
