// Opening a GPU, its memory and capabilities; what is forwarded to the linear layers and the op table.
#include "kernels/cuda/device.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/assert.h"
#include "kernels/cuda/gemm_lt.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/plain_tensors.h"
#include "kernels/cuda/small_kernels.h"
#include "kernels/cuda/stream.h"
#include "kernels/float_vector.h"

namespace takt::cuda {
namespace {

constexpr int32_t kMaxRows = 2048;      // beyond it a step's time is linear in its rows
constexpr size_t kHostAlignment = 64;
constexpr size_t kGraphBytes = size_t{1200} << 10;   // of a step of 28 layers, as measured; fewer layers take less
constexpr int kTunedCandidates = 6;     // of the library's, timed once a shape; the first few hold the best
// Roofline guesses for a cold cost model: shares of the data sheet's rates that whole steps have reached.
constexpr double kReadShare = 0.85;
constexpr double kArithmeticShare = 0.6;
constexpr double kLaunchSeconds = 2e-4;

int attribute(cudaDeviceAttr what, int device) {
    int value = 0;
    return cudaDeviceGetAttribute(&value, what, device) == cudaSuccess ? value : 0;
}

std::string words(cudaError_t e) { return cudaGetErrorString(e); }

}   // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(const CudaDeviceOptions& options) {
    int count = 0;
    if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess || count == 0) {
        cudaGetLastError();
        return Error{"no CUDA device answers: " + (e == cudaSuccess ? std::string("the driver has none") : words(e))};
    }
    if (options.index < 0 || options.index >= count) {
        return Error{"device.index: " + std::to_string(options.index) + " found, the machine has CUDA devices 0 to " +
                     std::to_string(count - 1)};
    }
    std::unique_ptr<CudaDevice> device(new CudaDevice(options));
    if (const Status s = device->open(); !s.ok()) {
        return Error{"CUDA device " + std::to_string(options.index) + ": " + s.message};
    }
    Result<std::shared_ptr<LinearContext>> linear =
        LinearContext::create(options.index, kMaxRows, options.deterministic);
    if (!linear) return Error{linear.error()};
    device->linear_ = std::move(linear).value();
    // Loads the library and takes its workspace now: neither may happen inside a capture.
    if (!options.deterministic && device->linear_->gemm()->available()) {
        device->linear_->gemm()->tune_new_shapes(kTunedCandidates, true);
    }
    return device;
}

Status CudaDevice::open() {
    if (const Status s = make_current(); !s.ok()) return s;
    if (const cudaError_t e = cudaFree(nullptr); e != cudaSuccess) return status_of(e);   // makes the context
    if (const Status s = check_kernel_image(); !s.ok()) {
        return {s.code, "this build has no code for its architecture (build option gpu_archs)"};
    }
    read_caps();
    return {};
}

void CudaDevice::read_caps() {
    const int device = options_.index;
    cudaDeviceProp properties = {};
    cudaGetDeviceProperties(&properties, device);
    int driver = 0;
    cudaDriverGetVersion(&driver);
    const double clock_hz = 1e3 * attribute(cudaDevAttrClockRate, device);
    const double memory_hz = 1e3 * attribute(cudaDevAttrMemoryClockRate, device);
    const double bus_bytes = attribute(cudaDevAttrGlobalMemoryBusWidth, device) / 8.0;
    caps_.kind = DeviceKind::cuda;
    caps_.name = std::string("cuda ") + properties.name + " (sm_" + std::to_string(properties.major) +
                 std::to_string(properties.minor) + ", driver " + std::to_string(driver / 1000) + "." +
                 std::to_string(driver % 1000 / 10) + ")";   // the driver too: a kept cost table is of all that
    caps_.activation_type = DType::bf16;
    caps_.kv_type = DType::bf16;
    caps_.max_rows = kMaxRows;
    caps_.num_threads = properties.multiProcessorCount;
    caps_.read_bytes_per_second = kReadShare * 2 * memory_hz * bus_bytes;
    // bf16 operations a clock of one multiprocessor's tensor cores.
    const double operations_a_clock = properties.major >= 9 ? 4096 : 2048;
    caps_.operations_per_second = kArithmeticShare * operations_a_clock * caps_.num_threads * clock_hz;
    caps_.launch_seconds = kLaunchSeconds;
}

CudaDevice::~CudaDevice() { TAKT_ASSERT(streams_.empty()); }

Status CudaDevice::make_current() const { return status_of(cudaSetDevice(options_.index)); }

void CudaDevice::memory(uint64_t* free_bytes, uint64_t* total_bytes) {
    size_t free_now = 0, total = 0;
    if (!make_current().ok() || cudaMemGetInfo(&free_now, &total) != cudaSuccess) free_now = total = 0;
    *free_bytes = free_now;
    *total_bytes = total;
}

Result<Buffer> CudaDevice::alloc(size_t bytes, MemoryKind kind) {
    if (num_capturing_ > 0) return Error{"memory cannot be allocated while a stream is being captured"};
    if (bytes == 0) return Error{"an allocation of 0 bytes was asked for"};
    if (const Status s = make_current(); !s.ok()) return Error{s.message};
    void* data = nullptr;
    cudaError_t e = cudaSuccess;
    switch (kind) {
        case MemoryKind::device: e = cudaMalloc(&data, bytes); break;
        case MemoryKind::pinned: e = cudaHostAlloc(&data, bytes, cudaHostAllocPortable); break;
        case MemoryKind::host:
            if (bytes <= SIZE_MAX - kHostAlignment) {
                data = std::aligned_alloc(kHostAlignment, (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment);
            }
            if (data == nullptr) e = cudaErrorMemoryAllocation;
            break;
    }
    if (e != cudaSuccess) {
        cudaGetLastError();   // a refusal is no failure of what comes next
        return Error{"an allocation of " + std::to_string(bytes) + " bytes: " + words(e)};
    }
    allocations_.add(data, bytes, kind);
    return Buffer(this, data, bytes, kind);
}

void CudaDevice::free(void* data, size_t, MemoryKind kind) {
    allocations_.remove(data);
    (void)make_current();
    switch (kind) {
        case MemoryKind::device: cudaFree(data); break;
        case MemoryKind::pinned: cudaFreeHost(data); break;
        case MemoryKind::host: std::free(data); break;
    }
}

Result<std::unique_ptr<Stream>> CudaDevice::stream(int priority) {
    if (const Status s = make_current(); !s.ok()) return Error{s.message};
    int least = 0, greatest = 0;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    cudaStream_t native = nullptr;
    const cudaError_t e =
        cudaStreamCreateWithPriority(&native, cudaStreamNonBlocking, std::clamp(priority, greatest, least));
    if (e != cudaSuccess) return Error{"a CUDA stream: " + words(e)};
    return std::unique_ptr<Stream>(std::make_unique<CudaStream>(*this, next_stream_id_++, native));
}

const OpTable& CudaDevice::ops() const {
    // Before Hopper a multiprocessor may lack the shared memory that the split attention takes; the unsplit one fits all.
    return options_.deterministic || !has_tensor_copies() ? cuda_deterministic_op_table() : cuda_op_table();
}

std::vector<int32_t> CudaDevice::row_ladder(int32_t max_running, int32_t max_rows) const {
    std::vector<int32_t> ladder;
    // Up to 512 in steps of a quarter at most: there lie the slices that gaps of 8 to 15 ms buy.
    for (const int32_t rows : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512}) ladder.push_back(rows);
    for (int32_t rows = 640; rows <= max_rows; rows += 128) ladder.push_back(rows);
    ladder.push_back(max_running);
    ladder.push_back(max_rows);
    std::erase_if(ladder, [&](int32_t rows) { return rows > max_rows; });
    std::sort(ladder.begin(), ladder.end());
    ladder.erase(std::unique(ladder.begin(), ladder.end()), ladder.end());
    return ladder;
}

Result<std::unique_ptr<Linear>> CudaDevice::make_linear(std::span<const HostTensor> parts, LinearKind kind) {
    if (const Status s = make_current(); !s.ok()) return Error{s.message};
    Result<PlainTensors> plain = PlainTensors::of(parts);
    if (!plain) return Error{plain.error()};
    return make_cuda_linear(linear_, plain.value().tensors(), kind);
}

Result<std::unique_ptr<Embedding>> CudaDevice::make_embedding(const HostTensor& table, const Linear* tied_head) {
    if (const Status s = make_current(); !s.ok()) return Error{s.message};
    const bool is_shared = tied_head != nullptr && tied_head->out_features() == table.rows && tied_head->in_features() == table.cols;
    if (is_shared) return make_cuda_embedding(linear_, table, tied_head);
    Result<PlainTensors> plain = PlainTensors::of({&table, 1});
    if (!plain) return Error{plain.error()};
    return make_cuda_embedding(linear_, plain.value().tensors()[0], nullptr);
}

Result<Buffer> CudaDevice::make_vector(const HostTensor& vector) {
    if (vector.cols <= 0) return Error{"a vector without elements"};
    std::vector<float> values(static_cast<size_t>(vector.cols));
    if (const auto reason = read_float_vector(vector, values.data())) return Error{*reason};
    Result<Buffer> buffer = alloc(values.size() * sizeof(float), MemoryKind::device);
    if (!buffer) return buffer;
    cudaError_t e = cudaMemcpy(buffer.value().data(), values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice);
    // From pageable memory the call returns when the bytes are staged, not when they have arrived; other streams do not wait for this one.
    if (e == cudaSuccess) e = cudaStreamSynchronize(cudaStreamLegacy);
    if (e != cudaSuccess) return Error{"a vector: " + words(e)};
    return buffer;
}

size_t CudaDevice::linear_scratch_bytes(int64_t widest_in, int64_t widest_out) const {
    return LinearContext::scratch_bytes(kMaxRows, widest_in, widest_out);
}

size_t CudaDevice::graph_bytes() const { return kGraphBytes; }

CudaStream* CudaDevice::find_stream(uint32_t id) const {
    const auto at = std::find_if(streams_.begin(), streams_.end(), [id](const CudaStream* s) { return s->id() == id; });
    return at == streams_.end() ? nullptr : *at;
}

}   // namespace takt::cuda

namespace takt {

Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options, TimeSource) {
    Result<std::unique_ptr<cuda::CudaDevice>> made = cuda::CudaDevice::create(options);
    if (!made) return Error{made.error()};
    return std::unique_ptr<Device>(std::move(made).value());
}

bool cuda_is_available() {
    int count = 0;
    const bool answers = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
    if (!answers) cudaGetLastError();
    return answers;
}

}   // namespace takt
