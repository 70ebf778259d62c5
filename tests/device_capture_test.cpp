// The conformance suite's graphs: what a capture forbids, what a replay reads, and that padded rows touch nobody's memory.
#include <cstring>
#include <functional>

#include "catch.h"
#include "conformance/on_every_device.h"
#include "conformance/step_probe.h"

namespace {

using namespace takt;
using namespace takt::conformance;

constexpr size_t kBytes = 512;

/// A stream and three small buffers; `target` is what tests look at.
struct Bench {
    explicit Bench(DeviceRig& r)
        : rig(r),
          source(rig.device().alloc(kBytes, MemoryKind::pinned).value()),
          middle(rig.device().alloc(kBytes, MemoryKind::device).value()),
          target(rig.device().alloc(kBytes, MemoryKind::pinned).value()),
          stream(rig.device().stream(0).value()) {
        std::memset(source.data(), 1, kBytes);
        std::memset(target.data(), 0, kBytes);
    }
    [[nodiscard]] bool target_is(uint8_t value) const {
        const auto* bytes = target.as<uint8_t>();
        return bytes[0] == value && std::memcmp(bytes, bytes + 1, kBytes - 1) == 0;
    }
    /// source -> middle -> target, recorded.
    std::unique_ptr<Graph> capture_copies() {
        REQUIRE(stream->begin_capture().ok());
        REQUIRE(stream->copy(middle.data(), source.data(), kBytes).ok());
        REQUIRE(stream->copy(target.data(), middle.data(), kBytes).ok());
        Result<std::unique_ptr<Graph>> graph = stream->end_capture();
        REQUIRE(graph.ok());
        return std::move(graph).value();
    }

    DeviceRig& rig;
    Buffer source, middle, target;
    std::unique_ptr<Stream> stream;
};

}  // namespace

TEST_CASE("a capture runs nothing; a replay reads the captured addresses as they are then", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Bench b(rig);
        const auto graph = b.capture_copies();
        CHECK(graph->num_operations() == 2);
        REQUIRE(rig.finish(*b.stream));
        CHECK(b.target_is(0));
        for (const uint8_t value : {uint8_t{7}, uint8_t{8}, uint8_t{9}}) {
            std::memset(b.source.data(), value, kBytes);
            REQUIRE(b.stream->launch(*graph).ok());
            REQUIRE(rig.finish(*b.stream));
            CHECK(b.target_is(value));
        }
        // Three replays in a row, each behind the change that it is to see.
        Buffer log = rig.device().alloc(3 * kBytes, MemoryKind::pinned).value();
        for (uint8_t i = 0; i < 3; ++i) {
            REQUIRE(b.stream->fill(b.source.data(), static_cast<uint8_t>(i + 20), kBytes).ok());
            REQUIRE(b.stream->launch(*graph).ok());
            REQUIRE(b.stream->copy(log.as<uint8_t>() + i * kBytes, b.target.data(), kBytes).ok());
        }
        REQUIRE(rig.finish(*b.stream));
        for (size_t i = 0; i < 3; ++i) CHECK(log.as<uint8_t>()[i * kBytes] == i + 20);
    });
}

TEST_CASE("a graph holds fills, copies and stamps, and runs on any stream of its device", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Bench b(rig);
        Buffer stamps = rig.device().alloc(64, MemoryKind::pinned).value();
        Buffer index = rig.device().alloc(64, MemoryKind::device).value();
        std::memset(stamps.data(), 0, 64);
        REQUIRE(b.stream->fill(index.data(), 0, 64).ok());
        REQUIRE(rig.finish(*b.stream));
        REQUIRE(b.stream->begin_capture().ok());
        REQUIRE(b.stream->stamp(stamps.as<uint64_t>(), index.as<int32_t>(), 2).ok());
        REQUIRE(b.stream->fill(b.middle.data(), 5, kBytes).ok());
        REQUIRE(b.stream->copy(b.target.data(), b.middle.data(), kBytes).ok());
        REQUIRE(b.stream->stamp(stamps.as<uint64_t>() + 1, index.as<int32_t>(), 2).ok());
        Result<std::unique_ptr<Graph>> graph = b.stream->end_capture();
        REQUIRE(graph.ok());
        CHECK(graph.value()->num_operations() == 4);
        const auto other = rig.device().stream(0).value();
        REQUIRE(other->launch(*graph.value()).ok());
        REQUIRE(rig.finish(*other));
        CHECK(b.target_is(5));
        const auto* at = stamps.as<uint64_t>();
        CHECK((at[0] > 0 && at[1] >= at[0] && at[2] == 0));
        // The index too is read at replay.
        *b.source.as<int32_t>() = 1;
        REQUIRE(other->copy(index.data(), b.source.data(), sizeof(int32_t)).ok());
        REQUIRE(other->launch(*graph.value()).ok());
        REQUIRE(rig.finish(*other));
        CHECK((at[2] >= at[1] && at[3] >= at[2]));
    });
}

TEST_CASE("a capture refuses what a graph cannot hold, fails as a whole, and leaves the stream well", "[conformance]") {
    struct Forbidden {
        const char* name;
        std::function<bool(Bench&, Graph&)> refused;   // false where the call was let through without a word
    };
    const Forbidden all[] = {
        {"synchronising", [](Bench& b, Graph&) { return !b.stream->synchronize().ok(); }},
        {"recording an event", [](Bench& b, Graph&) { b.stream->record(); return true; }},
        {"waiting for an event", [](Bench& b, Graph&) { return !b.stream->wait(Event{b.stream->id() + 1, 1}).ok(); }},
        {"launching a graph", [](Bench& b, Graph& graph) { return !b.stream->launch(graph).ok(); }},
        {"beginning again", [](Bench& b, Graph&) { return !b.stream->begin_capture().ok(); }},
        {"reading results into plain memory", [](Bench& b, Graph&) {
             std::vector<uint8_t> plain(kBytes);
             return !b.stream->copy(plain.data(), b.middle.data(), kBytes).ok();
         }},
        {"copying from plain memory", [](Bench& b, Graph&) {
             const std::vector<uint8_t> plain(kBytes);
             return !b.stream->copy(b.middle.data(), plain.data(), kBytes).ok();
         }},
        {"filling plain memory", [](Bench& b, Graph&) {
             std::vector<uint8_t> plain(kBytes);
             return !b.stream->fill(plain.data(), 1, kBytes).ok();
         }},
        {"stamping plain memory", [](Bench& b, Graph&) {
             uint64_t plain = 0;
             return !b.stream->stamp(&plain, nullptr, 0).ok();
         }},
    };
    on_every_device([&](DeviceRig& rig) {
        Bench b(rig);
        const auto graph = b.capture_copies();
        for (const Forbidden& f : all) {
            INFO(f.name);
            const uint64_t completed = b.stream->completed();
            REQUIRE(b.stream->begin_capture().ok());
            REQUIRE(b.stream->fill(b.middle.data(), 2, kBytes).ok());
            CHECK(f.refused(b, *graph));
            const Result<std::unique_ptr<Graph>> broken = b.stream->end_capture();
            REQUIRE_FALSE(broken.ok());
            CHECK_FALSE(broken.error().empty());
            CHECK(b.stream->completed() == completed);
            CHECK(b.stream->error().ok());
            std::memset(b.source.data(), 9, kBytes);
            REQUIRE(b.stream->launch(*graph).ok());
            REQUIRE(rig.finish(*b.stream));
            CHECK(b.target_is(9));
            std::memset(b.target.data(), 0, kBytes);
        }
        CHECK_FALSE(b.stream->end_capture().ok());   // none is running
    });
}

TEST_CASE("memory cannot be taken while a stream is being captured", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Bench b(rig);
        REQUIRE(b.stream->begin_capture().ok());
        for (MemoryKind kind : {MemoryKind::device, MemoryKind::pinned}) CHECK_FALSE(rig.device().alloc(64, kind).ok());
        (void)b.stream->end_capture();
        CHECK(rig.device().alloc(64, MemoryKind::device).ok());
        {
            const auto dropped = rig.device().stream(0).value();
            REQUIRE(dropped->begin_capture().ok());
        }
        CHECK(rig.device().alloc(64, MemoryKind::device).ok());
    });
}

TEST_CASE("a graph whose memory was freed is not replayed", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Bench b(rig);
        const auto graph = b.capture_copies();
        REQUIRE(b.stream->launch(*graph).ok());
        REQUIRE(rig.finish(*b.stream));
        Buffer unrelated = rig.device().alloc(kBytes, MemoryKind::device).value();
        unrelated = Buffer();
        CHECK(b.stream->launch(*graph).ok());
        REQUIRE(rig.finish(*b.stream));
        b.middle = Buffer();
        // Memory of the same size, very likely at the same place: still not what the graph was made for.
        Buffer again = rig.device().alloc(kBytes, MemoryKind::device).value();
        CHECK_FALSE(b.stream->launch(*graph).ok());
    });
}

TEST_CASE("a graph of another kind of device is refused", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Bench b(rig);
        const bool is_sim = rig.device().caps().kind == DeviceKind::sim;
        const auto stranger = make_rig(is_sim ? RigKind::cpu_manual : RigKind::sim);
        Bench s(*stranger);
        const auto foreign = s.capture_copies();
        CHECK_FALSE(b.stream->launch(*foreign).ok());
    });
}

TEST_CASE("true rows write their own KV slots, padded rows nothing but the dummy block; counts are read at replay", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        StepProbe probe(rig.device());
        const auto stream = rig.device().stream(0).value();
        const auto own_slots = [&] {
            std::vector<int32_t> slots = probe.written_slots(*stream);
            std::erase_if(slots, [](int32_t slot) { return slot < 16; });   // block 0 is the dummy block
            return slots;
        };
        probe.set_rows({20, 47});
        REQUIRE(probe.queue_clear(*stream).ok());
        REQUIRE(probe.queue_input(*stream).ok());
        REQUIRE(probe.queue_step(*stream).ok());
        REQUIRE(rig.finish(*stream));
        CHECK(own_slots() == std::vector<int32_t>{20, 47});

        REQUIRE(stream->begin_capture().ok());
        REQUIRE(probe.queue_step(*stream).ok());
        Result<std::unique_ptr<Graph>> graph = stream->end_capture();
        REQUIRE(graph.ok());
        const std::vector<std::vector<int32_t>> steps{{16}, {17, 33, 50}, {18, 34, 51, 63}, {}, {63}};
        for (const std::vector<int32_t>& slots : steps) {
            probe.set_rows(slots);
            REQUIRE(probe.queue_clear(*stream).ok());
            REQUIRE(probe.queue_input(*stream).ok());
            REQUIRE(stream->launch(*graph.value()).ok());
            REQUIRE(rig.finish(*stream));
            CHECK(own_slots() == slots);
        }
    });
}
