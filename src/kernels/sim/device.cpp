// Memory, time and faults of the sim device; see device.h.
#include "kernels/sim/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/float_vector.h"
#include "kernels/row_ladder.h"

namespace takt::sim {
namespace {

uint64_t next_random(uint64_t& state) {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t x = state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

double uniform(uint64_t& state) { return static_cast<double>(next_random(state) >> 11) * 0x1p-53; }

Status op_sim_step(Stream& stream, const SimStepParams& params) { return static_cast<SimStream&>(stream).enqueue_step(params); }

}  // namespace

SimDevice::SimDevice(const SimDeviceOptions& options, Profile profile, TimeSource time)
    : options_(options), profile_(std::move(profile)), time_(time), random_(options.seed * 0x9e3779b97f4a7c15ull + 1) {
    caps_.kind = DeviceKind::sim;
    caps_.name = "sim " + (options.profile_is_text ? std::string("(profile file)") : options.profile);
    caps_.rows_are_data = true;
    caps_.kv_type = DType::u8;
    caps_.max_rows = 4096;
    caps_.read_bytes_per_second = 2.8e12;
    caps_.operations_per_second = 6e14;
    caps_.launch_seconds = 150e-6;
}

void SimDevice::memory(uint64_t* free_bytes, uint64_t* total_bytes) {
    *total_bytes = options_.memory_bytes;
    *free_bytes = options_.memory_bytes - std::min(allocated_, options_.memory_bytes);
}

Result<Buffer> SimDevice::alloc(size_t bytes, MemoryKind kind) {
    if (num_capturing_ > 0) return Error{"allocation inside a capture"};
    if (++num_allocs_ == options_.fail_alloc || bytes > options_.memory_bytes - std::min(allocated_, options_.memory_bytes)) {
        return Error{"the sim device is out of memory"};
    }
    void* data = std::calloc(std::max<size_t>(bytes, 1), 1);   // untouched pages cost nothing
    if (data == nullptr) return Error{"out of host memory"};
    allocated_ += bytes;
    allocations_.add(data, bytes, kind);
    return Buffer(this, data, bytes, kind);
}

void SimDevice::free(void* data, size_t bytes, MemoryKind) {
    allocated_ -= bytes;
    allocations_.remove(data);
    std::free(data);
}

Result<std::unique_ptr<Stream>> SimDevice::stream(int) {
    auto made = std::make_unique<SimStream>(*this, next_stream_id_++);
    streams_.push_back(made.get());
    return std::unique_ptr<Stream>(std::move(made));
}

const OpTable& SimDevice::ops() const {
    static constexpr OpTable kTable = [] {
        OpTable t;
        t.sim_step = op_sim_step;
        return t;
    }();
    return kTable;
}

std::vector<int32_t> SimDevice::row_ladder(int32_t max_running, int32_t max_rows) const {
    return make_row_ladder(128, max_running, max_rows);
}

Result<std::unique_ptr<Linear>> SimDevice::make_linear(std::span<const HostTensor>, LinearKind) {
    return Error{"the sim device has no arithmetic"};
}

Result<std::unique_ptr<Embedding>> SimDevice::make_embedding(const HostTensor&, const Linear*) {
    return Error{"the sim device has no arithmetic"};
}

Result<Buffer> SimDevice::make_vector(const HostTensor& vector) {
    Result<Buffer> buffer = alloc(static_cast<size_t>(vector.cols) * sizeof(float), MemoryKind::device);
    if (!buffer) return buffer;
    if (const auto reason = read_float_vector(vector, buffer.value().as<float>())) return Error{*reason};
    return buffer;
}

bool SimDevice::poll(int) {
    const uint64_t now = time_.now();
    bool any = false;
    for (bool again = true; again;) {   // an event of one stream may free another
        again = false;
        for (SimStream* s : streams_) again |= s->advance(now);
        any |= again;
    }
    return any;
}

std::optional<uint64_t> SimDevice::next_completion_ns() {
    std::optional<uint64_t> next;
    for (const SimStream* s : streams_) {
        if (s->front_end_ns_ && !s->stalled_) next = next ? std::min(*next, *s->front_end_ns_) : *s->front_end_ns_;
    }
    return next;
}

/// Lognormal factor without libm, so that every compiler and library gives the same bits: exp(x) to third order, |x| small.
double SimDevice::noise() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += uniform(random_);
    const double x = (sum - 6.0) * options_.noise;
    const double outlier = options_.noise > 0 && uniform(random_) < 0.003 ? 1.2 : 1.0;
    return (1.0 + x + x * x / 2 + x * x * x / 6) * outlier;
}

void SimDevice::spoil_samples(const SimStepParams& params) {
    if (options_.nonfinite_samples == 0) return;
    const StepHeader& header = *params.in.header;
    auto* block = static_cast<uint8_t*>(params.results) + static_cast<size_t>(header.result_index) * params.result_stride;
    auto* results = reinterpret_cast<SampleResult*>(block + sizeof(StepResultHeader));
    for (int32_t i = 0; i < header.num_samples; ++i) {
        if (next_random(random_) % options_.nonfinite_samples == 0) results[i].flags |= kSampleNonFinite;
    }
}

std::optional<uint64_t> SimDevice::step_duration_ns(const SimStepParams& params) {
    ++num_steps_;
    if (num_steps_ == options_.fail_launch) return std::nullopt;
    if (num_steps_ == options_.stall_launch) return UINT64_MAX;
    double factor = noise();
    if (num_steps_ == options_.slow_launch) factor *= 20;
    if (options_.faults) {
        const double chance = uniform(random_);
        if (chance < 1.0 / 50000) return std::nullopt;
        if (chance < 1.0 / 1000) factor *= 20;
    }
    return static_cast<uint64_t>(profile_.step_ns(params.rows, *params.in.header) * factor * options_.scale);
}

}  // namespace takt::sim

namespace takt {

Result<std::unique_ptr<Device>> make_sim_device(const SimDeviceOptions& options, TimeSource time) {
    Result<sim::Profile> profile =
        options.profile_is_text ? sim::Profile::parse(options.profile) : sim::Profile::built_in(options.profile);
    if (!profile) return Error{"sim.profile: " + profile.error()};
    return std::unique_ptr<Device>(std::make_unique<sim::SimDevice>(options, std::move(profile).value(), time));
}

}  // namespace takt
