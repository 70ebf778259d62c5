// Memory and capabilities of the CPU device; what is forwarded to the arithmetic.
#include "kernels/cpu/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/assert.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/ops.h"
#include "kernels/float_vector.h"
#include "kernels/row_ladder.h"

namespace takt::cpu {
namespace {

constexpr size_t kLineBytes = 64;
constexpr uint8_t kPoison = 0xA5;

// Roofline guesses of one core for a cold cost model; the first steps correct them.
constexpr double kReadBytesPerSecondPerCore = 2e10;
constexpr double kLongestReadBytesPerSecond = 2e11;
constexpr double kPortableOperationsPerSecond = 1e10;
constexpr double kAvx2OperationsPerSecond = 1.2e11;
constexpr double kAvx512OperationsPerSecond = 3e11;

DeviceCaps make_caps(CpuIsa isa, int32_t num_threads) {
    DeviceCaps caps;
    caps.kind = DeviceKind::cpu;
    caps.name = std::string("cpu ") + isa_name(isa);
    caps.rows_are_data = true;
    caps.max_rows = 512;
    caps.num_threads = num_threads;
    caps.read_bytes_per_second = std::min(kReadBytesPerSecondPerCore * num_threads, kLongestReadBytesPerSecond);
    const double per_core = isa == CpuIsa::avx512 ? kAvx512OperationsPerSecond
                            : isa == CpuIsa::avx2 ? kAvx2OperationsPerSecond
                                                  : kPortableOperationsPerSecond;
    caps.operations_per_second = per_core * num_threads;
    caps.launch_seconds = 2e-5;
    return caps;
}

}  // namespace

CpuDevice::CpuDevice(const CpuDeviceOptions& options, TimeSource time)
    : options_(options), time_(time), isa_(choose_isa(options.isa)) {
    PoolOptions pool;
    pool.num_threads = options.num_threads > 0 ? options.num_threads : num_cores();
    pool.isa = isa_;
    pool.arithmetic = options.arithmetic;
    caps_ = make_caps(isa_, pool.num_threads);
    pool_ = std::make_unique<ThreadPool>(pool, time);
    if (!options_.manual) worker_ = std::thread([this] { work(); });
}

CpuDevice::~CpuDevice() {
    {
        const std::lock_guard lock(mutex_);
        TAKT_ASSERT(streams_.empty());
        stop_ = true;
    }
    num_pushed_.fetch_add(1);
    work_.notify_all();
    if (worker_.joinable()) worker_.join();
}

void CpuDevice::memory(uint64_t* free_bytes, uint64_t* total_bytes) { host_memory(free_bytes, total_bytes); }

Result<Buffer> CpuDevice::alloc(size_t bytes, MemoryKind kind) {
    if (num_capturing_ > 0) return Error{"memory cannot be allocated while a stream is being captured"};
    if (bytes == 0) return Error{"an allocation of 0 bytes was asked for"};
    if (bytes > SIZE_MAX - kLineBytes) return Error{"an allocation of " + std::to_string(bytes) + " bytes is too large"};
    void* data = bytes >= kHugePageBytes ? allocate_huge(bytes)
                 : Slabs::serves(bytes)  ? slabs_.take(bytes)
                                         : std::aligned_alloc(kLineBytes, (bytes + kLineBytes - 1) / kLineBytes * kLineBytes);
    if (data == nullptr) return Error{"the host has no " + std::to_string(bytes) + " bytes of memory left"};
    if (options_.manual) std::memset(data, kPoison, bytes);
    allocations_.add(data, bytes, kind);
    return Buffer(this, data, bytes, kind);
}

void CpuDevice::free(void* data, size_t bytes, MemoryKind) {
    allocations_.remove(data);
    if (!Slabs::serves(bytes) || !slabs_.give(data)) std::free(data);
}

Result<std::unique_ptr<Stream>> CpuDevice::stream(int priority) {
    return std::unique_ptr<Stream>(std::make_unique<CpuStream>(*this, next_stream_id_++, priority));
}

const OpTable& CpuDevice::ops() const { return cpu_op_table(); }

std::vector<int32_t> CpuDevice::row_ladder(int32_t max_running, int32_t max_rows) const {
    return make_row_ladder(0, max_running, max_rows);
}

Result<std::unique_ptr<Linear>> CpuDevice::make_linear(std::span<const HostTensor> parts, LinearKind kind) {
    return make_cpu_linear(*this, parts, kind);
}

Result<std::unique_ptr<Embedding>> CpuDevice::make_embedding(const HostTensor& table, const Linear* tied_head) {
    return make_cpu_embedding(*this, table, tied_head);
}

size_t CpuDevice::linear_bytes(std::span<const HostTensor> parts, LinearKind) const { return cpu_linear_bytes(*this, parts); }

Result<Buffer> CpuDevice::make_vector(const HostTensor& vector) {
    if (vector.cols <= 0) return Error{"a vector without elements"};
    Result<Buffer> buffer = alloc(static_cast<size_t>(vector.cols) * sizeof(float), MemoryKind::device);
    if (!buffer) return buffer;
    const std::optional<std::string> reason = read_float_vector(vector, buffer.value().as<float>());
    if (reason.has_value()) return Error{*reason};
    return buffer;
}

bool CpuDevice::set_wakeup(void (*fn)(void* ctx), void* ctx) {
    const std::lock_guard lock(wakeup_mutex_);
    wakeup_ = fn;
    wakeup_context_ = ctx;
    return !options_.manual;
}

}  // namespace takt::cpu
