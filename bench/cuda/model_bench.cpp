// Weights of every layer are distinct memory, so that no step finds them in the L2 cache. Times are medians of graph
// replays.
#include "model_bench.h"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/gemm_lt.h"
#include "kernels/cuda/sample.h"

namespace takt::check {
namespace {

constexpr size_t kPatternElements = size_t{8} << 20;

}   // namespace

std::unique_ptr<cuda::CudaLinear> ModelBench::make_linear(int64_t out, int64_t in, LinearKind kind) {
    auto linear = std::make_unique<cuda::CudaLinear>(context_, kind);
    require(linear->allocate(out, in), "weights");
    const size_t count = linear->bytes() / 2;
    auto* to = const_cast<__nv_bfloat16*>(linear->data());
    for (size_t at = 0; at < count; at += kPatternElements - 4099) {
        const size_t n = std::min(count - at, kPatternElements - 4099), from = random_() % 4096;
        require(cudaMemcpyAsync(to + at, pattern_->data() + from, n * 2, cudaMemcpyDeviceToDevice, stream_), "weights");
    }
    weight_bytes_ += static_cast<double>(linear->bytes());
    return linear;
}

ModelBench::ModelBench(const ModelShape& shape, int64_t max_kv_tokens, int max_rows, std::mt19937_64& random)
    : shape_(shape), random_(random) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    auto context = cuda::LinearContext::create(0, max_rows, false);
    if (!context.ok()) {
        std::printf("%s\n", context.error().c_str());
        std::exit(3);
    }
    context_ = context.value();
    context_->gemm()->tune_new_shapes(16);
    pattern_ =
        std::make_unique<DeviceArray<__nv_bfloat16>>(random_values<__nv_bfloat16>(random, kPatternElements, 0.02f));
    layout_ = {DType::bf16, 1, shape.kv_heads, shape.head_dim, 16, static_cast<int32_t>(max_kv_tokens / 16 + 1)};
    const size_t cache_bytes = layout_.layer_bytes(), pattern_bytes = kPatternElements * 2;
    for (int i = 0; i < shape.layers; ++i) {
        Layer layer;
        layer.qkv = make_linear((shape.heads + 2 * shape.kv_heads) * shape.head_dim, shape.hidden, LinearKind::stacked);
        layer.output = make_linear(shape.hidden, shape.heads * shape.head_dim, LinearKind::stacked);
        layer.gate_up = make_linear(2 * shape.ffn, shape.hidden, LinearKind::gate_up);
        layer.down = make_linear(shape.hidden, shape.ffn, LinearKind::stacked);
        require(cudaMalloc(&layer.cache, cache_bytes), "cache");
        for (size_t at = 0; at < cache_bytes; at += pattern_bytes) {
            require(cudaMemcpyAsync(static_cast<uint8_t*>(layer.cache) + at, pattern_->data(),
                                    std::min(pattern_bytes, cache_bytes - at), cudaMemcpyDeviceToDevice, stream_),
                    "cache");
        }
        layers_.push_back(std::move(layer));
    }
    head_ = make_linear(shape.vocab, shape.hidden, LinearKind::head);
    auto embedding =
        cuda::make_cuda_embedding(context_, {nullptr, DType::bf16, shape.vocab, shape.hidden}, head_.get());
    embedding_ = std::move(embedding).value();
    const auto rows = static_cast<size_t>(max_rows);
    const auto width = static_cast<size_t>(shape.heads * shape.head_dim);
    q_ = std::make_unique<DeviceArray<__nv_bfloat16>>(rows * width);
    attended_ = std::make_unique<DeviceArray<__nv_bfloat16>>(rows * width);
    wide_ = std::make_unique<DeviceArray<__nv_bfloat16>>(rows * static_cast<size_t>(shape.ffn));
    hidden_ = std::make_unique<DeviceArray<float>>(rows * static_cast<size_t>(shape.hidden));
    norm_ = std::make_unique<DeviceArray<float>>(
        random_values<float>(random, static_cast<size_t>(std::max(shape.hidden, shape.ffn)), 0.1f, 1.0f));
    bias_ = std::make_unique<DeviceArray<float>>(
        random_values<float>(random, static_cast<size_t>(shape.heads + 2 * shape.kv_heads) * 128, 0.1f));
    frequencies_ = std::make_unique<DeviceArray<float>>(std::vector<float>(128, 0.01f));
    logits_ = std::make_unique<DeviceArray<float>>(size_t{256} * static_cast<size_t>(shape.vocab));
    slots_ = std::make_unique<DeviceArray<int32_t>>(512);
    partials_ = std::make_unique<DeviceArray<uint8_t>>(cuda::attention_scratch_bytes(layout_, 16384));
    require(cudaMallocHost(&results_, 2 * step_result_bytes(512)), "results");
    require(cudaStreamSynchronize(stream_), "weights");
}

ModelBench::~ModelBench() {
    for (Layer& layer : layers_) cudaFree(layer.cache);
    cudaFreeHost(results_);
    cudaStreamDestroy(stream_);
}

void ModelBench::enqueue(const StepBuilder& step, Part part) {
    const StepView in = step.device();
    const int rows = step.padded_rows(), samples = step.capacity().max_samples;
    const auto does = [part](Part p) { return part == Part::all || part == p; };
    const NormParams norm{norm_->data(), 1e-6f, NormStyle::plain};
    if (does(Part::all))
        require(cuda::run_embed(stream_, {in, rows, embedding_.get(), slots_->data(), 1.0f, hidden_->data()}), "embed");
    for (const Layer& layer : layers_) {
        AttentionInputParams a;
        a.in = in;
        a.rows = rows;
        a.hidden = hidden_->data();
        a.norm = norm;
        a.qkv = layer.qkv.get();
        a.bias = bias_->data();
        a.rope = {RopeStyle::half, frequencies_->data(), 1.0f};
        a.num_heads = shape_.heads;
        a.kv = layout_;
        a.kv_layer = layer.cache;
        a.q = q_->data();
        if (does(Part::input)) require(cuda::run_attention_input(stream_, a), "input");
        AttentionParams t;
        t.in = in;
        t.rows = rows;
        t.decodes = step.decodes();
        t.q = q_->data();
        t.num_heads = shape_.heads;
        t.kv = layout_;
        t.kv_layer = layer.cache;
        t.scale = 0.0884f;
        t.partials = partials_->data();
        t.out = attended_->data();
        if (does(Part::attention)) require(cuda::run_attention(stream_, t, context_->num_sms()), "attention");
        if (does(Part::output)) {
            require(cuda::run_linear_residual(
                        stream_, {in, rows, attended_->data(), layer.output.get(), nullptr, {}, hidden_->data()}),
                    "output");
        }
        if (does(Part::mlp)) {
            require(cuda::run_mlp_input(stream_, {in, rows, hidden_->data(), norm, layer.gate_up.get(),
                                                  Activation::silu, wide_->data()}),
                    "mlp");
        }
        if (does(Part::down)) {
            require(cuda::run_linear_residual(
                        stream_, {in, rows, wide_->data(), layer.down.get(), nullptr, {}, hidden_->data()}),
                    "down");
        }
    }
    if (!does(Part::head)) return;
    require(cuda::run_logits(stream_,
                             {in, samples, hidden_->data(), norm, head_.get(), 0.0f, logits_->data(), shape_.vocab}),
            "logits");
    SampleParams s;
    s.in = in;
    s.samples = samples;
    s.greedy_only = true;
    s.logits = logits_->data();
    s.vocab_stride = s.vocab = shape_.vocab;
    s.slot_tokens = slots_->data();
    s.results = results_;
    s.result_stride = step_result_bytes(512);
    require(cuda::run_sample(stream_, s), "sample");
}

ModelBench::Timing ModelBench::time(const std::vector<SegmentShape>& segments, Part part, int repeats) {
    KvLayout layout = layout_;
    StepBuilder step(layout, segments, shape_.heads, 0, false, context_->num_sms(), random_);
    if (layout.num_blocks > layout_.num_blocks || step.capacity().max_work > 16384) {
        std::printf("the step does not fit the bench\n");
        std::exit(3);
    }
    enqueue(step, part);
    require(cudaStreamSynchronize(stream_), "eager step");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    enqueue(step, part);
    require(cudaStreamEndCapture(stream_, &graph), "capture");
    size_t nodes = 0;
    require(cudaGraphGetNodes(graph, nullptr, &nodes), "nodes");
    require(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    std::vector<cudaEvent_t> marks(static_cast<size_t>(repeats) + 1);
    for (cudaEvent_t& e : marks) require(cudaEventCreate(&e), "event");
    for (int i = 0; i < 3; ++i) require(cudaGraphLaunch(executable, stream_), "launch");
    for (size_t i = 0; i < marks.size(); ++i) {
        require(cudaEventRecord(marks[i], stream_), "event");
        if (i + 1 < marks.size()) require(cudaGraphLaunch(executable, stream_), "launch");
    }
    require(cudaStreamSynchronize(stream_), "graph");
    std::vector<float> ms(static_cast<size_t>(repeats));
    for (size_t i = 0; i < ms.size(); ++i) require(cudaEventElapsedTime(&ms[i], marks[i], marks[i + 1]), "elapsed");
    for (cudaEvent_t e : marks) cudaEventDestroy(e);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    std::sort(ms.begin(), ms.end());
    return {static_cast<double>(ms[ms.size() / 2]), static_cast<int>(nodes)};
}

}   // namespace takt::check
