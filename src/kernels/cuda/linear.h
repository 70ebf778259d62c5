// Weights on the GPU: CudaLinear and CudaEmbedding (bf16, row-major, rows padded to 64 columns so that one copy serves
// the hand-written kernels and the vendor library), and LinearContext, the scratch memory and library handle that the
// linear layers of one device share. Built while a model loads, on the engine's thread; nothing here allocates once
// loading is over.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <memory>
#include <span>

#include "kernels/device.h"

namespace takt::cuda {

class LtGemm;

constexpr int32_t kChunkRows = 2048;   ///< larger steps run their linear layers in pieces of this many rows
constexpr int32_t kSmallRows = 64;     ///< most rows of the products that add into the accumulator

/// How a matrix of weights lies.
enum class WeightOrder : uint8_t {
    rows,     ///< row after row: a copy of 64 columns is 128 bytes of each row
    panels,   ///< 64 columns of all rows, then the next 64: a copy is one run. Gate and up where only kernels with tensor maps read them
};

/// Device memory that the operations of one device use between two kernels. Grows in `reserve` only (loading).
class LinearContext {
public:
    /// `max_rows`: the largest shape; scratch is bounded by min(max_rows, kChunkRows).
    static Result<std::shared_ptr<LinearContext>> create(int device, int32_t max_rows, bool deterministic);
    ~LinearContext();
    LinearContext(const LinearContext&) = delete;
    LinearContext& operator=(const LinearContext&) = delete;

    [[nodiscard]] int num_sms() const { return num_sms_; }
    [[nodiscard]] bool deterministic() const { return deterministic_; }
    [[nodiscard]] int32_t chunk_rows() const { return chunk_rows_; }
    [[nodiscard]] size_t bytes() const { return bytes_; }
    [[nodiscard]] float* accumulator() const {
        return accumulator_;
    }   // [kSmallRows][widest out], zero between operations
    [[nodiscard]] int32_t* counters() const { return counters_; }   // [2], zero between operations
    [[nodiscard]] __nv_bfloat16* normed() const { return normed_; }   // [chunk_rows][widest in]
    [[nodiscard]] __nv_bfloat16* wide() const { return wide_; }       // [chunk_rows][widest out but heads]
    [[nodiscard]] LtGemm* gemm() const { return gemm_.get(); }

    /// What `reserve` will have taken once layers of these widths are loaded.
    static size_t scratch_bytes(int32_t max_rows, int64_t widest_in, int64_t widest_out);
    /// Makes the scratch large enough for a layer of this shape.
    Status reserve(int64_t out_features, int64_t in_features, LinearKind kind);
    /// A tensor map over [rows][cols] bf16 with `stride` elements a row: boxes of 64 columns x `box_rows` x
    /// `box_chunks`.
    Status make_map(CUtensorMap* map, const void* data, int64_t rows, int64_t cols, int64_t stride, int box_rows,
                    int box_chunks, int64_t chunk_bytes = 128) const;
    /// A tensor map over [heads][2][head_dim / 2] rows: boxes of 64 columns x `box_pairs` rows of both halves of a head. Coordinates:
    /// column, row of the half, half, head, chunk of 64 columns.
    Status make_pair_map(CUtensorMap* map, const void* data, int64_t rows, int64_t cols, int64_t stride, int head_dim,
                         int box_pairs) const;
    /// Copies `rows` rows made by `fill(row, dst)` through pinned double buffers; returns when all have arrived. In
    /// panels: rows of whole 128 bytes.
    Status upload(void* dst, int64_t rows, size_t row_bytes, void (*fill)(void* ctx, int64_t row, void* dst), void* ctx,
                  WeightOrder order = WeightOrder::rows);

private:
    LinearContext() = default;
    int num_sms_ = 0;
    int32_t chunk_rows_ = 0;
    bool deterministic_ = false;
    size_t bytes_ = 0;
    int64_t widest_out_ = 0, widest_in_ = 0, widest_wide_ = 0;
    float* accumulator_ = nullptr;
    int32_t* counters_ = nullptr;
    __nv_bfloat16* normed_ = nullptr;
    __nv_bfloat16* wide_ = nullptr;
    void* staging_[2] = {nullptr, nullptr};
    cudaEvent_t staged_[2] = {nullptr, nullptr};
    cudaStream_t stream_ = nullptr;
    void* encode_ = nullptr;
    std::unique_ptr<LtGemm> gemm_;
};

class CudaLinear final : public Linear {
public:
    CudaLinear(std::shared_ptr<LinearContext> context, LinearKind kind) : context_(std::move(context)), kind_(kind) {}
    ~CudaLinear() override;
    [[nodiscard]] int64_t out_features() const override { return out_; }
    [[nodiscard]] int64_t in_features() const override { return in_; }
    [[nodiscard]] size_t bytes() const override { return bytes_; }

    [[nodiscard]] const __nv_bfloat16* data() const { return data_; }
    [[nodiscard]] int64_t stride() const { return stride_; }   ///< elements a row
    [[nodiscard]] LinearKind kind() const { return kind_; }
    /// gate_up: rows 16 b + i are gate row 8 b + i for i < 8, else up row 8 b + i - 8, so that one MMA tile holds both.
    [[nodiscard]] bool interleaved() const { return interleaved_; }
    [[nodiscard]] const CUtensorMap& map() const { return map_; }   ///< boxes of 64 x 16 rows x 2 chunks
    [[nodiscard]] const CUtensorMap& tile_map() const { return tile_map_; }   ///< boxes of 64 x 32 rows
    [[nodiscard]] WeightOrder order() const { return order_; }   ///< panels: for kernels that read by make_map's maps
    [[nodiscard]] LinearContext& context() const { return *context_; }
    /// A tensor map over the weights however they lie; boxes of 64 columns x `box_rows` x `box_chunks`, in shared memory always rows of
    /// 128 bytes, chunk after chunk. Coordinates: 0, row, chunk of 64 columns.
    Status make_map(CUtensorMap* map, int box_rows, int box_chunks) const;

    Status load(std::span<const HostTensor> parts);
    /// For benches and tests: device memory of the shape, contents undefined.
    Status allocate(int64_t out, int64_t in);

private:
    std::shared_ptr<LinearContext> context_;
    LinearKind kind_;
    int64_t out_ = 0, in_ = 0, stride_ = 0;
    size_t bytes_ = 0;
    bool interleaved_ = false;
    WeightOrder order_ = WeightOrder::rows;
    __nv_bfloat16* data_ = nullptr;
    CUtensorMap map_ = {}, tile_map_ = {};
};

class CudaEmbedding final : public Embedding {
public:
    explicit CudaEmbedding(std::shared_ptr<LinearContext> context) : context_(std::move(context)) {}
    ~CudaEmbedding() override;
    [[nodiscard]] int64_t num_tokens() const override { return tokens_; }
    [[nodiscard]] int64_t hidden() const override { return hidden_; }
    [[nodiscard]] size_t bytes() const override { return owned_ ? bytes_ : 0; }
    [[nodiscard]] const __nv_bfloat16* data() const { return data_; }
    [[nodiscard]] int64_t stride() const { return stride_; }

    Status load(const HostTensor& table, const CudaLinear* tied);

private:
    std::shared_ptr<LinearContext> context_;
    int64_t tokens_ = 0, hidden_ = 0, stride_ = 0;
    size_t bytes_ = 0;
    bool owned_ = false;
    const __nv_bfloat16* data_ = nullptr;
};

/// What the device's make_linear and make_embedding call. Element types f32, f16 and bf16 (others: unpack first); all
/// become bf16.
Result<std::unique_ptr<Linear>> make_cuda_linear(const std::shared_ptr<LinearContext>& context,
                                                 std::span<const HostTensor> parts, LinearKind kind);
Result<std::unique_ptr<Embedding>> make_cuda_embedding(const std::shared_ptr<LinearContext>& context,
                                                       const HostTensor& table, const Linear* tied_head);

}   // namespace takt::cuda
