// The device conformance suite: what architecture section 3.4 promises of a device, checked on every one of them: CPU by hand, CPU
// with threads, sim, and CUDA where a driver answers. Order, events and failure are here; graphs in device_capture_test.cpp.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "catch.h"
#include "conformance/on_every_device.h"

namespace {

using namespace takt;
using namespace takt::conformance;

constexpr size_t kBytes = 4096;

Buffer take(Device& device, MemoryKind kind, size_t bytes = kBytes) {
    Result<Buffer> made = device.alloc(bytes, kind);
    REQUIRE(made.ok());
    return std::move(made).value();
}

std::unique_ptr<Stream> stream_of(Device& device) {
    Result<std::unique_ptr<Stream>> made = device.stream(0);
    REQUIRE(made.ok());
    return std::move(made).value();
}

bool holds_only(const Buffer& buffer, uint8_t value) {
    const auto* bytes = buffer.as<uint8_t>();
    for (size_t i = 0; i < buffer.bytes(); ++i) {
        if (bytes[i] != value) return false;
    }
    return true;
}

void set(Buffer& buffer, uint8_t value) { std::memset(buffer.data(), value, buffer.bytes()); }

}  // namespace

TEST_CASE("operations of one stream run in order", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        Buffer work = take(device, MemoryKind::device);
        std::vector<Buffer> seen;
        for (int i = 0; i < 20; ++i) seen.push_back(take(device, MemoryKind::pinned));
        const auto stream = stream_of(device);
        for (size_t i = 0; i < seen.size(); ++i) {
            REQUIRE(stream->fill(work.data(), static_cast<uint8_t>(i + 1), kBytes).ok());
            REQUIRE(stream->copy(seen[i].data(), work.data(), kBytes).ok());
        }
        REQUIRE(rig.finish(*stream));
        for (size_t i = 0; i < seen.size(); ++i) CHECK(holds_only(seen[i], static_cast<uint8_t>(i + 1)));
    });
}

TEST_CASE("streams have no order among each other", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        Buffer a = take(device, MemoryKind::pinned);
        Buffer b = take(device, MemoryKind::pinned);
        Buffer seven = take(device, MemoryKind::device);
        const auto held = stream_of(device);
        const auto free = stream_of(device);
        set(a, 1);
        set(b, 1);
        REQUIRE(free->fill(seven.data(), 7, kBytes).ok());
        REQUIRE(rig.finish(*free));
        rig.hold(*held);
        REQUIRE(held->copy(a.data(), seven.data(), kBytes).ok());
        const Event later = held->record();
        REQUIRE(free->copy(b.data(), seven.data(), kBytes).ok());
        CHECK(rig.finish(*free));
        CHECK(holds_only(b, 7));
        CHECK_FALSE(held->ready(later));
        CHECK(holds_only(a, rig.poisons() ? 0xA5 : 1));
        rig.release();
        CHECK(rig.finish(*held, later));
        CHECK(holds_only(a, 7));
    });
}

TEST_CASE("wait makes an order, also over a third stream", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        Buffer x = take(device, MemoryKind::device);
        Buffer y = take(device, MemoryKind::device);
        Buffer z = take(device, MemoryKind::pinned);
        const auto first = stream_of(device);
        const auto second = stream_of(device);
        const auto third = stream_of(device);
        set(z, 1);
        REQUIRE(first->fill(x.data(), 1, kBytes).ok());
        REQUIRE(first->fill(y.data(), 2, kBytes).ok());
        REQUIRE(rig.finish(*first));
        rig.hold(*first);
        REQUIRE(first->fill(x.data(), 9, kBytes).ok());
        REQUIRE(second->wait(first->record()).ok());
        REQUIRE(second->copy(y.data(), x.data(), kBytes).ok());
        REQUIRE(third->wait(second->record()).ok());
        REQUIRE(third->copy(z.data(), y.data(), kBytes).ok());
        const Event last = third->record();
        for (int i = 0; i < 3; ++i) rig.run();
        CHECK_FALSE(third->ready(last));
        rig.release();
        REQUIRE(rig.finish(*third, last));
        CHECK(holds_only(z, 9));
        // An event that was reached long ago holds nobody.
        REQUIRE(second->wait(Event{first->id(), 1}).ok());
        CHECK(rig.finish(*second));
    });
}

TEST_CASE("events are counted from 1 and never become unready", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        Buffer work = take(device, MemoryKind::device);
        const auto stream = stream_of(device);
        CHECK(stream->completed() == 0);
        REQUIRE(rig.finish(*stream));
        CHECK(stream->completed() == 1);
        rig.hold(*stream);
        std::vector<Event> events;
        for (int i = 0; i < 50; ++i) {
            REQUIRE(stream->fill(work.data(), static_cast<uint8_t>(i), kBytes).ok());
            events.push_back(stream->record());
            CHECK(events.back().stream_id == stream->id());
            CHECK(events.back().value == static_cast<uint64_t>(i) + 2);
        }
        rig.run();
        CHECK(stream->completed() == 1);
        rig.release();
        uint64_t before = 1;
        bool monotone = true;
        while (before < events.back().value) {
            const uint64_t now = stream->completed();
            monotone = monotone && now >= before && now <= events.back().value;
            before = now;
            if (now < events.back().value) REQUIRE(rig.finish(*stream, Event{stream->id(), now + 1}));
        }
        CHECK(monotone);
        for (const Event& e : events) CHECK(stream->ready(e));
    });
}

TEST_CASE("a copy reads its source when it runs, and the source may go once an event says so", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        Buffer source = take(device, MemoryKind::pinned);
        Buffer middle = take(device, MemoryKind::device);
        Buffer target = take(device, MemoryKind::pinned);
        const auto stream = stream_of(device);
        set(source, 1);
        rig.hold(*stream);
        REQUIRE(stream->copy(middle.data(), source.data(), kBytes).ok());
        REQUIRE(stream->copy(target.data(), middle.data(), kBytes).ok());
        const Event done = stream->record();
        set(source, 2);   // still the stream's to read: what it reads is what is there then
        rig.release();
        REQUIRE(rig.finish(*stream, done));
        CHECK(holds_only(target, 2));
        source = Buffer();
        {
            std::vector<uint8_t> plain(kBytes, 5);
            REQUIRE(stream->copy(middle.data(), plain.data(), kBytes).ok());
            REQUIRE(rig.finish(*stream));
        }
        REQUIRE(stream->copy(target.data(), middle.data(), kBytes).ok());
        REQUIRE(rig.finish(*stream));
        CHECK(holds_only(target, 5));
    });
}

TEST_CASE("many small copies and odd sizes arrive whole and in order", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        constexpr size_t kPieces = 40;
        Buffer source = take(device, MemoryKind::pinned, kPieces * 256);
        Buffer middle = take(device, MemoryKind::device, kPieces * 256);
        Buffer target = take(device, MemoryKind::pinned, kPieces * 256);
        auto* bytes = source.as<uint8_t>();
        for (size_t i = 0; i < source.bytes(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + i / 251);
        const auto stream = stream_of(device);
        REQUIRE(stream->fill(middle.data(), 0xEE, middle.bytes()).ok());
        for (size_t i = 0; i < kPieces; ++i) {
            const size_t length = 1 + (i * 53) % 255;
            REQUIRE(stream->copy(middle.as<uint8_t>() + i * 256 + i % 2, bytes + i * 256 + i % 2, length).ok());
        }
        // A later copy over an earlier one's place wins.
        REQUIRE(stream->copy(middle.data(), bytes + 512, 16).ok());
        REQUIRE(stream->copy(middle.data(), bytes + 256, 0).ok());
        REQUIRE(stream->copy(target.data(), middle.data(), middle.bytes()).ok());
        REQUIRE(rig.finish(*stream));
        size_t wrong = 0;
        for (size_t i = 0; i < target.bytes(); ++i) {
            const size_t piece = i / 256, within = i % 256, length = 1 + (piece * 53) % 255;
            const bool copied = within >= piece % 2 && within < piece % 2 + length;
            const uint8_t expected = i < 16 ? bytes[512 + i] : copied ? bytes[i] : 0xEE;
            wrong += target.as<uint8_t>()[i] != expected;
        }
        CHECK(wrong == 0);
    });
}

TEST_CASE("stamps are the device's clock, in order, written where the index says at that time", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        Buffer stamps = take(device, MemoryKind::pinned, 8 * sizeof(uint64_t));
        Buffer index = take(device, MemoryKind::device, 64);
        Buffer one = take(device, MemoryKind::pinned, 64);
        const auto stream = stream_of(device);
        set(stamps, 0);
        *one.as<int32_t>() = 1;
        REQUIRE(stream->fill(index.data(), 0, index.bytes()).ok());
        auto* base = stamps.as<uint64_t>();
        REQUIRE(stream->stamp(base, nullptr, 0).ok());
        REQUIRE(stream->stamp(base + 1, index.as<int32_t>(), 4).ok());
        REQUIRE(stream->copy(index.data(), one.data(), sizeof(int32_t)).ok());
        REQUIRE(stream->stamp(base + 1, index.as<int32_t>(), 4).ok());
        REQUIRE(rig.finish(*stream));
        CHECK(base[0] > 0);
        CHECK(base[1] >= base[0]);
        CHECK(base[5] >= base[1]);
        CHECK((base[2] == 0 && base[3] == 0 && base[4] == 0 && base[6] == 0));
    });
}

TEST_CASE("synchronize returns when all is done", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        Buffer work = take(device, MemoryKind::device);
        Buffer target = take(device, MemoryKind::pinned);
        const auto stream = stream_of(device);
        REQUIRE(stream->fill(work.data(), 3, kBytes).ok());
        REQUIRE(stream->copy(target.data(), work.data(), kBytes).ok());
        const Event done = stream->record();
        CHECK(stream->synchronize().ok());
        CHECK(stream->ready(done));
        CHECK(holds_only(target, 3));
        CHECK(stream->synchronize().ok());
    });
}

TEST_CASE("memory: aligned, counted, refused in words where there is not enough", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        for (MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::host}) {
            Buffer buffer = take(device, kind, 1000);
            CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % 16 == 0);
            CHECK(buffer.bytes() == 1000);
            CHECK(buffer.kind() == kind);
            if (kind != MemoryKind::device) set(buffer, 1);
        }
        uint64_t free_bytes = 0, total_bytes = 0;
        device.memory(&free_bytes, &total_bytes);
        CHECK(free_bytes > 0);
        CHECK(free_bytes <= total_bytes);
        const Result<Buffer> huge = device.alloc(size_t{1} << 60, MemoryKind::device);
        CHECK_FALSE(huge.ok());
        if (!huge.ok()) CHECK_FALSE(huge.error().empty());
        Buffer after = take(device, MemoryKind::pinned);
        const auto stream = stream_of(device);
        REQUIRE(stream->fill(after.data(), 4, kBytes).ok());
        REQUIRE(rig.finish(*stream));
        CHECK(holds_only(after, 4));
    });
}

TEST_CASE("vectors of every float type arrive as float32", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        const std::vector<uint16_t> half{0x3C00, 0xC000, 0x3800};      // 1, -2, 0.5
        const std::vector<uint16_t> brain{0x3F80, 0xC000, 0x3F00};     // the same
        const std::vector<float> full{1.0f, -2.0f, 0.5f};
        const HostTensor tensors[] = {{half.data(), DType::f16, 1, 3}, {brain.data(), DType::bf16, 1, 3}, {full.data(), DType::f32, 1, 3}};
        const auto stream = stream_of(device);
        for (const HostTensor& tensor : tensors) {
            Result<Buffer> made = device.make_vector(tensor);
            REQUIRE(made.ok());
            Buffer target = take(device, MemoryKind::pinned, 3 * sizeof(float));
            REQUIRE(stream->copy(target.data(), made.value().data(), 3 * sizeof(float)).ok());
            REQUIRE(rig.finish(*stream));
            CHECK(std::memcmp(target.data(), full.data(), 3 * sizeof(float)) == 0);
        }
        const HostTensor wrong{full.data(), DType::f32, 2, 1};
        CHECK_FALSE(device.make_vector(wrong).ok());
    });
}

TEST_CASE("the ladder ascends, holds max_running and ends at the largest shape", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        for (int32_t max_running : {1, 7, 64, 100, 256}) {
            for (int32_t max_rows : {256, 512, 2048}) {
                const std::vector<int32_t> ladder = rig.device().row_ladder(max_running, max_rows);
                REQUIRE_FALSE(ladder.empty());
                CHECK(ladder.front() == 1);
                CHECK(ladder.back() == max_rows);
                CHECK(std::find(ladder.begin(), ladder.end(), max_running) != ladder.end());
                CHECK(std::adjacent_find(ladder.begin(), ladder.end(), std::greater_equal<>()) == ladder.end());
            }
        }
    });
}

TEST_CASE("a device that announces completions does so for every event, others say that they must be polled", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        std::atomic<int> calls{0};
        const auto count = [](void* context) { static_cast<std::atomic<int>*>(context)->fetch_add(1); };
        const bool announces = device.set_wakeup(count, &calls);
        const auto stream = stream_of(device);
        for (int i = 1; i <= 5; ++i) REQUIRE(rig.finish(*stream));
        for (int i = 0; i < 1000 && announces && calls < 5; ++i) rig.run();
        if (announces) CHECK(calls == 5);
        device.set_wakeup(nullptr, nullptr);
        const int before = calls;
        REQUIRE(rig.finish(*stream));
        CHECK(calls == before);
    });
}

TEST_CASE("a stream may be destroyed with work queued; the others go on", "[conformance]") {
    on_every_device([](DeviceRig& rig) {
        Device& device = rig.device();
        Buffer work = take(device, MemoryKind::device, 1 << 20);
        Buffer target = take(device, MemoryKind::pinned);
        const auto other = stream_of(device);
        {
            const auto brief = stream_of(device);
            for (int i = 0; i < 10; ++i) REQUIRE(brief->fill(work.data(), 1, work.bytes()).ok());
            (void)brief->record();
        }
        REQUIRE(other->fill(target.data(), 8, kBytes).ok());
        REQUIRE(rig.finish(*other));
        CHECK(holds_only(target, 8));
    });
}

namespace {

/// After a failure: what follows has no effect, every event is ready, the error stays and has words.
void check_failure(DeviceRig& rig) {
    Device& device = rig.device();
    Buffer target = take(device, MemoryKind::pinned);
    Buffer beside = take(device, MemoryKind::pinned);
    const auto stream = stream_of(device);
    const auto other = stream_of(device);
    set(target, 1);
    REQUIRE(stream->fill(target.data(), 2, kBytes).ok());
    const Event before = stream->record();
    REQUIRE(rig.finish(*stream, before));
    CHECK(stream->error().ok());
    CHECK(holds_only(target, 2));

    rig.hold(*stream);
    rig.fail(*stream);
    const Event at_failure = stream->record();
    rig.release();
    CHECK(rig.finish(*stream, at_failure));
    CHECK_FALSE(stream->error().ok());
    CHECK(std::strlen(stream->error().message) > 0);

    (void)stream->fill(target.data(), 3, kBytes);
    const Event later = stream->record();
    CHECK(later.value == at_failure.value + 1);
    CHECK(rig.finish(*stream, later));
    CHECK(stream->ready(before));
    CHECK_FALSE(stream->error().ok());
    CHECK_FALSE(stream->synchronize().ok());
    CHECK(holds_only(target, 2));

    // Who waits for the failed stream is not held for ever.
    (void)other->wait(later);
    (void)other->fill(beside.data(), 6, kBytes);
    CHECK(rig.finish(*other));
    CHECK(other->error().ok() == rig.fails_alone());
    if (rig.fails_alone()) CHECK(holds_only(beside, 6));
}

}  // namespace

TEST_CASE("a failed operation is sticky and still makes every later event ready, with an error", "[conformance]") {
    for (RigKind kind : {RigKind::cpu_manual, RigKind::cpu_threaded, RigKind::sim}) {
        DYNAMIC_SECTION(rig_name(kind)) {
            const auto rig = make_rig(kind, true);
            REQUIRE(rig != nullptr);
            check_failure(*rig);
        }
    }
    // A CUDA failure takes the whole process's device with it: in a process of its own.
    DYNAMIC_SECTION("cuda") { in_child_with_cuda("[cuda-failure]"); }
}

TEST_CASE("cuda alone: a failed operation", "[.cuda-failure]") {
    const auto rig = make_rig(RigKind::cuda, true);
    REQUIRE(rig != nullptr);
    check_failure(*rig);
}
