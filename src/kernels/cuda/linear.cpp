// Uploads weights as bf16 through pinned double buffers and owns the scratch of the linear layers. Engine thread, at
// load only.
#include "kernels/cuda/linear.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/cuda/gemm_lt.h"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

constexpr size_t kStagingBytes = size_t{32} << 20;
constexpr size_t kPanelBytes = 128;   // 64 columns

uint16_t bf16_of(float v) {
    uint32_t u;
    std::memcpy(&u, &v, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/// Writes row `r` of a plain tensor as bf16, zero-filled up to `stride` elements.
void convert_row(const HostTensor& t, int64_t r, uint16_t* dst, int64_t stride) {
    const uint8_t* src = t.row(r);
    if (t.type == DType::bf16) {
        std::memcpy(dst, src, static_cast<size_t>(t.cols) * 2);
    } else if (t.type == DType::f16) {
        for (int64_t i = 0; i < t.cols; ++i) {
            __half h;
            std::memcpy(&h, src + 2 * i, 2);
            dst[i] = bf16_of(__half2float(h));
        }
    } else {
        for (int64_t i = 0; i < t.cols; ++i) {
            float f;
            std::memcpy(&f, src + 4 * i, 4);
            dst[i] = bf16_of(f);
        }
    }
    std::fill(dst + t.cols, dst + stride, uint16_t{0});
}

/// Calls `fill_row(r)` for all rows, on a few threads where it is worth one: a single one reads a file's pages at a tenth of the bus.
template <class F>
void fill_rows(int64_t rows, size_t row_bytes, const F& fill_row) {
    constexpr int64_t kMostThreads = 6, kBytesAThread = int64_t{2} << 20;
    const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency() / 2);
    const int64_t worth = rows * static_cast<int64_t>(row_bytes) / kBytesAThread;
    const int64_t count = std::clamp<int64_t>(worth, 1, std::min(kMostThreads, cores));
    const auto part = [&](int64_t i) {
        for (int64_t r = rows * i / count; r < rows * (i + 1) / count; ++r) fill_row(r);
    };
    std::vector<std::thread> others;
    for (int64_t i = 1; i < count; ++i) others.emplace_back(part, i);
    part(0);
    for (std::thread& t : others) t.join();
}

bool is_plain(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

struct PartRows {
    std::span<const HostTensor> parts;
    bool interleaved = false;
    int64_t stride = 0;
    static void fill(void* ctx, int64_t row, void* dst) {
        auto* self = static_cast<PartRows*>(ctx);
        auto* out = static_cast<uint16_t*>(dst);
        if (self->interleaved) {
            const int64_t within = row % 16;
            convert_row(self->parts[within < 8 ? 0 : 1], row / 16 * 8 + within % 8, out, self->stride);
            return;
        }
        for (const HostTensor& part : self->parts) {
            if (row < part.rows) return convert_row(part, row, out, self->stride);
            row -= part.rows;
        }
    }
};

}   // namespace

Result<std::shared_ptr<LinearContext>> LinearContext::create(int device, int32_t max_rows, bool deterministic) {
    std::shared_ptr<LinearContext> c(new LinearContext());
    c->deterministic_ = deterministic;
    c->chunk_rows_ = std::clamp(max_rows, kSmallRows, kChunkRows);
    cudaError_t e = cudaDeviceGetAttribute(&c->num_sms_, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&c->stream_, cudaStreamNonBlocking);
    for (int i = 0; i < 2 && e == cudaSuccess; ++i) {
        e = cudaMallocHost(&c->staging_[i], kStagingBytes);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&c->staged_[i], cudaEventDisableTiming);
    }
    void* counters = nullptr;
    if (e == cudaSuccess) e = cudaMalloc(&counters, 2 * sizeof(int32_t));
    c->counters_ = static_cast<int32_t*>(counters);
    if (e == cudaSuccess) e = cudaMemset(counters, 0, 2 * sizeof(int32_t));
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (e == cudaSuccess)
        e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &c->encode_, 12000, cudaEnableDefault, &found);
    if (e != cudaSuccess) return Error{std::string("CUDA: linear layers: ") + cudaGetErrorString(e)};
    if (found != cudaDriverEntryPointSuccess && has_tensor_copies())
        return Error{"CUDA: the driver has no tensor maps (need driver 525 or newer)"};
    c->gemm_ = std::make_unique<LtGemm>();
    return c;
}

LinearContext::~LinearContext() {
    cudaFree(accumulator_);
    cudaFree(counters_);
    cudaFree(normed_);
    cudaFree(wide_);
    for (int i = 0; i < 2; ++i) {
        if (staging_[i] != nullptr) cudaFreeHost(staging_[i]);
        if (staged_[i] != nullptr) cudaEventDestroy(staged_[i]);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Status LinearContext::reserve(int64_t out, int64_t in, LinearKind kind) {
    const auto grow = [this](auto** p, int64_t* have, int64_t need, int64_t rows) {
        if (need <= *have) return cudaSuccess;
        const size_t element = sizeof(**p);
        cudaFree(*p);
        bytes_ -= static_cast<size_t>(*have * rows) * element;
        *p = nullptr;
        *have = 0;
        void* fresh = nullptr;
        const size_t bytes = static_cast<size_t>(need * rows) * element;
        cudaError_t e = cudaMalloc(&fresh, bytes);
        if (e == cudaSuccess) e = cudaMemset(fresh, 0, bytes);
        if (e != cudaSuccess) return e;
        *p = static_cast<std::remove_reference_t<decltype(*p)>>(fresh);
        *have = need;
        bytes_ += bytes;
        return e;
    };
    cudaError_t e = grow(&normed_, &widest_in_, (in + 63) / 64 * 64, chunk_rows_);
    if (kind != LinearKind::head) {
        if (e == cudaSuccess) e = grow(&accumulator_, &widest_out_, out, kSmallRows);
        if (e == cudaSuccess) e = grow(&wide_, &widest_wide_, (out + 63) / 64 * 64, chunk_rows_);
    }
    return status_of(e);
}

size_t LinearContext::scratch_bytes(int32_t max_rows, int64_t widest_in, int64_t widest_out) {
    const int64_t rows = std::min(max_rows, kChunkRows), in = (widest_in + 63) / 64 * 64, out = (widest_out + 63) / 64 * 64;
    return static_cast<size_t>(rows * (in + out)) * sizeof(__nv_bfloat16) + static_cast<size_t>(kSmallRows * widest_out) * sizeof(float);
}

Status LinearContext::make_map(CUtensorMap* map, const void* data, int64_t rows, int64_t cols, int64_t stride,
                               int box_rows, int box_chunks, int64_t chunk_bytes) const {
    if (!has_tensor_copies()) return {};   // nobody will read it
    const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode_);
    const cuuint64_t dims[3] = {64, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>((cols + 63) / 64)};
    const cuuint64_t strides[2] = {static_cast<cuuint64_t>(stride) * 2, static_cast<cuuint64_t>(chunk_bytes)};
    const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_chunks)};
    const cuuint32_t steps[3] = {1, 1, 1};
    const CUresult r = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), dims, strides, box,
                              steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? Status{} : Status{kStatusBadArgument, "CUDA: a tensor map was refused"};
}

Status LinearContext::make_pair_map(CUtensorMap* map, const void* data, int64_t rows, int64_t cols, int64_t stride, int head_dim,
                                    int box_pairs) const {
    if (!has_tensor_copies()) return {};
    const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode_);
    const auto u = [](int64_t v) { return static_cast<cuuint64_t>(v); };
    const cuuint64_t dims[5] = {64, u(head_dim / 2), 2, u(rows / head_dim), u((cols + 63) / 64)};
    const cuuint64_t strides[4] = {u(stride * 2), u(head_dim / 2 * stride * 2), u(head_dim * stride * 2), 128};
    const cuuint32_t box[5] = {64, static_cast<cuuint32_t>(box_pairs), 2, 1, 1};
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    const CUresult r = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, const_cast<void*>(data), dims, strides, box, steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? Status{} : Status{kStatusBadArgument, "CUDA: a tensor map of heads was refused"};
}

Status LinearContext::upload(void* dst, int64_t rows, size_t row_bytes, void (*fill)(void*, int64_t, void*), void* ctx, WeightOrder order) {
    const size_t panels = order == WeightOrder::panels ? row_bytes / kPanelBytes : 1, panel_bytes = row_bytes / panels;
    const int64_t per_piece = std::max<int64_t>(1, static_cast<int64_t>(kStagingBytes / row_bytes));
    if (row_bytes > kStagingBytes) return {kStatusBadArgument, "CUDA: a weight row is too long to stage"};
    int turn = 0;
    cudaError_t e = cudaSuccess;
    for (int64_t at = 0; at < rows && e == cudaSuccess; at += per_piece, turn ^= 1) {
        const int64_t n = std::min(per_piece, rows - at);
        e = cudaEventSynchronize(staged_[turn]);
        auto* buffer = static_cast<uint8_t*>(staging_[turn]);
        const auto piece_bytes = static_cast<size_t>(n) * panel_bytes;
        fill_rows(n, row_bytes, [&](int64_t r) {
            const auto row = static_cast<size_t>(r);
            if (order == WeightOrder::rows) return fill(ctx, at + r, buffer + row * row_bytes);
            thread_local std::vector<uint8_t> whole;
            whole.resize(row_bytes);
            fill(ctx, at + r, whole.data());
            for (size_t i = 0; i < panels; ++i)
                std::memcpy(buffer + i * piece_bytes + row * kPanelBytes, whole.data() + i * kPanelBytes, kPanelBytes);
        });
        for (size_t i = 0; i < panels && e == cudaSuccess; ++i) {
            e = cudaMemcpyAsync(static_cast<uint8_t*>(dst) + (i * static_cast<size_t>(rows) + static_cast<size_t>(at)) * panel_bytes,
                                buffer + i * piece_bytes, piece_bytes, cudaMemcpyHostToDevice, stream_);
        }
        if (e == cudaSuccess) e = cudaEventRecord(staged_[turn], stream_);
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream_);
    return status_of(e);
}

CudaLinear::~CudaLinear() { cudaFree(data_); }

Status CudaLinear::allocate(int64_t out, int64_t in) {
    out_ = out;
    in_ = in;
    stride_ = (in + 63) / 64 * 64;
    interleaved_ = kind_ == LinearKind::gate_up && out % 16 == 0;
    bytes_ = static_cast<size_t>(out_ * stride_) * 2;
    void* p = nullptr;
    const cudaError_t e = cudaMalloc(&p, bytes_);
    if (e != cudaSuccess) return status_of(e);
    data_ = static_cast<__nv_bfloat16*>(p);
    const bool only_by_maps = interleaved_ && in % 64 == 0 && !context_->deterministic() && has_warpgroups();
    order_ = only_by_maps ? WeightOrder::panels : WeightOrder::rows;
    Status s = make_map(&map_, 16, 2);
    if (s.ok()) s = make_map(&tile_map_, 32, 1);
    if (s.ok()) s = context_->reserve(out_, in_, kind_);
    return s;
}

Status CudaLinear::make_map(CUtensorMap* map, int box_rows, int box_chunks) const {
    if (order_ == WeightOrder::panels) return context_->make_map(map, data_, out_, in_, 64, box_rows, box_chunks, out_ * kPanelBytes);
    return context_->make_map(map, data_, out_, in_, stride_, box_rows, box_chunks);
}

Status CudaLinear::load(std::span<const HostTensor> parts) {
    int64_t out = 0;
    for (const HostTensor& p : parts) {
        if (!is_plain(p.type) || p.cols != parts[0].cols) {
            return {kStatusUnsupported, "CUDA: weights must be f32, f16 or bf16 of one width"};
        }
        out += p.rows;
    }
    if (kind_ == LinearKind::gate_up && (parts.size() != 2 || parts[0].rows != parts[1].rows)) {
        return {kStatusBadArgument, "CUDA: gate and up must be two parts of one shape"};
    }
    Status s = allocate(out, parts[0].cols);
    if (!s.ok()) return s;
    PartRows rows{parts, interleaved_, stride_};
    return context_->upload(data_, out_, static_cast<size_t>(stride_) * 2, &PartRows::fill, &rows, order_);
}

CudaEmbedding::~CudaEmbedding() {
    if (owned_) cudaFree(const_cast<__nv_bfloat16*>(data_));
}

Status CudaEmbedding::load(const HostTensor& table, const CudaLinear* tied) {
    tokens_ = table.rows;
    hidden_ = table.cols;
    if (tied != nullptr && tied->out_features() == tokens_ && tied->in_features() == hidden_) {
        data_ = tied->data();
        stride_ = tied->stride();
        return {};
    }
    if (!is_plain(table.type)) return {kStatusUnsupported, "CUDA: the embedding must be f32, f16 or bf16"};
    stride_ = (hidden_ + 63) / 64 * 64;
    bytes_ = static_cast<size_t>(tokens_ * stride_) * 2;
    void* p = nullptr;
    const cudaError_t e = cudaMalloc(&p, bytes_);
    if (e != cudaSuccess) return status_of(e);
    data_ = static_cast<__nv_bfloat16*>(p);
    owned_ = true;
    PartRows rows{std::span<const HostTensor>(&table, 1), false, stride_};
    return context_->upload(p, tokens_, static_cast<size_t>(stride_) * 2, &PartRows::fill, &rows);
}

Result<std::unique_ptr<Linear>> make_cuda_linear(const std::shared_ptr<LinearContext>& context,
                                                 std::span<const HostTensor> parts, LinearKind kind) {
    if (parts.empty()) return Error{"CUDA: a linear layer without parts"};
    auto linear = std::make_unique<CudaLinear>(context, kind);
    const Status s = linear->load(parts);
    if (!s.ok()) return Error{std::string("CUDA: loading a linear layer: ") + s.message};
    return std::unique_ptr<Linear>(std::move(linear));
}

Result<std::unique_ptr<Embedding>> make_cuda_embedding(const std::shared_ptr<LinearContext>& context,
                                                       const HostTensor& table, const Linear* tied_head) {
    auto embedding = std::make_unique<CudaEmbedding>(context);
    const Status s = embedding->load(table, static_cast<const CudaLinear*>(tied_head));
    if (!s.ok()) return Error{std::string("CUDA: loading the embedding: ") + s.message};
    return std::unique_ptr<Embedding>(std::move(embedding));
}

}   // namespace takt::cuda
