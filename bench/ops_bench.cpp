// Matrix products of SmolLM2-135M's shapes on the CPU device, packed as the engine packs them (Q4_1 layers, Q8_0 head, every layer
// its own memory, random content), at 1 to 512 rows and 1 and 2 threads. Beside them, measured in the same run: the read bandwidth
// of a buffer of the model's size and the instruction peaks that bound a product. `--json FILE` writes the figures, `--type q6_k`
// measures another type.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <boost/json.hpp>

#include "cpu_peaks.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/row_block.h"
#include "kernels/cpu/stream.h"
#include "kernels/device_factory.h"
#include "runtime/clock.h"

namespace {

using namespace takt;
using namespace takt::cpu;

constexpr int kLayers = 30;   // of SmolLM2, and the most of any shapes here
constexpr size_t kModelBytes = 98u << 20;

struct Shape {
    const char* name;
    DType type;
    int64_t rows, cols;
    int copies;
};
/// SmolLM2-135M as its file has it; or, for any one type, a model of width 2,048 and eight layers (K types need 256 columns a block).
std::vector<Shape> make_shapes(const std::string& type) {
    if (type.empty()) {
        return {{"qkv", DType::q4_1, 960, 576, kLayers},
                {"output", DType::q4_1, 576, 576, kLayers},
                {"gate_up", DType::q4_1, 3072, 576, kLayers},
                {"down", DType::q4_1, 576, 1536, kLayers},
                {"head", DType::q8_0, 49152, 576, 1}};
    }
    for (const DType t : {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0,
                          DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k}) {
        if (type != dtype_info(t).name) continue;
        return {{"qkv", t, 3072, 2048, 8}, {"output", t, 2048, 2048, 8}, {"gate_up", t, 11264, 2048, 8}, {"down", t, 2048, 5632, 8},
                {"head", t, 32768, 2048, 1}};
    }
    std::fprintf(stderr, "unknown type: %s\n", type.c_str());
    std::exit(2);
}
std::vector<Shape> shapes;

struct Options {
    std::string json;
    std::string type;   // empty: SmolLM2
    std::vector<int> rows = {1, 2, 4, 8, 16, 64, 512};
    std::vector<int> threads = {1, 2};
    CpuIsa isa = CpuIsa::automatic;
    CpuArithmetic arithmetic = CpuArithmetic::int16;
    bool passes_only = false;
};

/// Random blocks with modest scales: what a product costs does not depend on the values.
std::vector<uint8_t> random_blocks(const Shape& shape, std::mt19937& random) {
    const DTypeInfo info = dtype_info(shape.type);
    std::vector<uint8_t> bytes(dtype_bytes(shape.type, static_cast<size_t>(shape.rows * shape.cols)));
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    const uint16_t half = 0x2000;
    for (size_t at = 0; at < bytes.size(); at += info.block_bytes) {
        std::memcpy(bytes.data() + at, &half, 2);
        if (shape.type == DType::q4_1) std::memcpy(bytes.data() + at + 2, &half, 2);
    }
    return bytes;
}

/// The packed matrices of one device: [shape][copy].
struct Matrices {
    std::vector<std::vector<std::unique_ptr<Linear>>> all;
    explicit Matrices(Device& device) {
        std::mt19937 random(7);
        for (const Shape& shape : shapes) {
            const auto bytes = random_blocks(shape, random);
            const HostTensor tensor{bytes.data(), shape.type, shape.rows, shape.cols};
            std::vector<std::unique_ptr<Linear>> copies;
            for (int i = 0; i < shape.copies; ++i) {
                auto made = device.make_linear({&tensor, 1}, LinearKind::stacked);
                if (!made) std::exit((std::fprintf(stderr, "%s\n", made.error().c_str()), 1));
                copies.push_back(std::move(made).value());
            }
            all.push_back(std::move(copies));
        }
    }
};

struct ProductParams {
    const CpuLinear* linear;
    RowBlock* rows;
    int64_t num_rows;
    float* out;
};

/// Rows already quantised; out[row][out_features].
void run_product(TaskContext& context, const void* data) {
    const auto& p = *static_cast<const ProductParams*>(data);
    const PackedMatrix& part = p.linear->parts()[0];
    const int64_t step = p.rows->rows_at_once(p.num_rows);
    for (int64_t first = 0; first < p.num_rows; first += step) {
        const int64_t count = std::min(step, p.num_rows - first);
        Deal deal = context.deal(part.num_groups);
        for (int64_t g = deal.next(); g >= 0; g = deal.next()) {
            p.rows->multiply(part.group(g), first, count, p.out + first * part.rows + g * kGroupRows, static_cast<size_t>(part.rows));
        }
    }
}

/// Rows of activations of one width, quantised once.
class Activations {
public:
    Activations(int64_t rows, int64_t cols, CpuArithmetic arithmetic, const KernelTable& kernels)
        : memory_(RowBlock::bytes(rows, cols, use(kernels), kernels) + 64),
          block_(reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) / 64 * 64), rows, cols, arithmetic,
                 use(kernels), kernels) {
        std::mt19937 random(3);
        std::vector<float> x(static_cast<size_t>(cols));
        for (int64_t r = 0; r < rows; ++r) {
            for (float& v : x) v = std::normal_distribution<float>()(random);
            block_.set_row(r, x.data(), NormParams{});
        }
    }
    RowBlock* block() { return &block_; }

private:
    static RowUse use(const KernelTable& kernels) {
        RowUse use;
        for (const Shape& shape : shapes) use.add(shape.type, kernels);
        return use;
    }

    std::vector<uint8_t> memory_;
    RowBlock block_;
};

struct Figure {
    double us = 0;      // one product, or the whole pass
    double gb_s = 0;    // of packed weights
    double gop_s = 0;   // multiplications and additions
};

class Bench {
public:
    Bench(const Options& options, int threads) : threads_(threads) {
        CpuDeviceOptions o;
        o.num_threads = threads;
        o.isa = options.isa;
        o.arithmetic = options.arithmetic;
        auto made = make_cpu_device(o, clock_.source());
        if (!made) std::exit((std::fprintf(stderr, "%s\n", made.error().c_str()), 1));
        device_ = std::move(made).value();
        stream_ = std::move(device_->stream(0)).value();
        matrices_ = std::make_unique<Matrices>(*device_);
        arithmetic_ = options.arithmetic;
        kernels_ = &kernel_table(choose_isa(options.isa));
        out_.resize(512 * 11264 + 64 * 49152);
    }

    /// Products of the shapes [first, last) in the engine's order; the head multiplies at most 64 rows, as a step samples few.
    Figure measure(int64_t rows, size_t first, size_t last) {
        const int64_t width = shapes[0].cols;
        Activations narrow(rows, width, arithmetic_, *kernels_), wide(rows, shapes[3].cols, arithmetic_, *kernels_);
        if (!stream_->begin_capture().ok()) std::exit(1);
        double bytes = 0, operations = 0;
        int products = 0;
        auto& cpu = static_cast<CpuStream&>(*stream_);
        for (int layer = 0; layer < kLayers; ++layer) {
            for (size_t s = first; s < last; ++s) {
                if (layer >= shapes[s].copies) continue;
                if (s == 4 && last - first > 1) continue;
                add(cpu, s, layer, rows, shapes[s].cols == width ? narrow : wide, bytes, operations, products);
            }
        }
        if (last - first > 1) add(cpu, 4, 0, std::min<int64_t>(rows, rows > 64 ? 1 : 64), narrow, bytes, operations, products);
        auto graph = stream_->end_capture();
        if (!graph) std::exit((std::fprintf(stderr, "%s\n", graph.error().c_str()), 1));
        const double ns = median_ns(*graph.value());
        const double per = last - first > 1 ? 1 : products;
        return {ns / per / 1e3, bytes / ns, operations / ns};
    }

private:
    void add(CpuStream& cpu, size_t s, int copy, int64_t rows, Activations& x, double& bytes, double& operations, int& products) {
        const auto& linear = static_cast<const CpuLinear&>(*matrices_->all[s][static_cast<size_t>(copy)]);
        const ProductParams params{&linear, x.block(), rows, out_.data()};
        if (!cpu.enqueue(run_product, params).ok()) std::exit(1);
        bytes += static_cast<double>(linear.bytes());
        operations += 2.0 * static_cast<double>(rows) * static_cast<double>(shapes[s].rows * shapes[s].cols);
        ++products;
    }
    double median_ns(Graph& graph) {
        std::vector<double> times;
        double total = 0;
        for (int i = 0; (total < 1e8 || i < 4) && i < 300; ++i) {
            const uint64_t begin = clock_.now_ns();
            if (!stream_->launch(graph).ok() || !stream_->synchronize().ok()) std::exit(1);
            const auto ns = static_cast<double>(clock_.now_ns() - begin);
            total += ns;
            if (i > 0) times.push_back(ns);
        }
        std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
        return times[times.size() / 2];
    }

    RealClock clock_;
    int threads_;
    CpuArithmetic arithmetic_ = CpuArithmetic::int16;
    const KernelTable* kernels_ = nullptr;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Stream> stream_;
    std::unique_ptr<Matrices> matrices_;
    std::vector<float> out_;
};

boost::json::object to_json(const Figure& f) { return {{"us", f.us}, {"gb_s", f.gb_s}, {"gop_s", f.gop_s}}; }

boost::json::object run_threads(const Options& options, int threads, const std::vector<double>& read) {
    Bench bench(options, threads);
    boost::json::object result;
    std::printf("\n%d thread%s   us a product | GB/s of weights | Gop/s\n%-9s", threads, threads > 1 ? "s" : "", "rows");
    for (const int rows : options.rows) std::printf(" %17d", rows);
    std::printf("\n");
    for (size_t s = 0; s <= shapes.size(); ++s) {
        const bool pass = s == shapes.size();
        if (!pass && options.passes_only) continue;
        boost::json::object line;
        std::printf("%-9s", pass ? "pass" : shapes[s].name);
        for (const int rows : options.rows) {
            if (!pass && s == 4 && rows > 64) continue;
            const Figure f = pass ? bench.measure(rows, 0, shapes.size()) : bench.measure(rows, s, s + 1);
            std::printf(" %7.1f %4.0f %4.0f", f.us, f.gb_s, f.gop_s);
            boost::json::object entry = to_json(f);
            if (pass) entry["tokens_s"] = static_cast<double>(rows) / f.us * 1e6;
            if (pass) entry["share_of_read"] = f.gb_s / read[static_cast<size_t>(threads - 1)];
            line[std::to_string(rows)] = std::move(entry);
            std::fflush(stdout);
        }
        std::printf("\n");
        result[pass ? "pass" : shapes[s].name] = std::move(line);
    }
    std::printf("%-9s", "tokens/s");
    for (const int rows : options.rows) {
        std::printf(" %17.0f", result["pass"].at(std::to_string(rows)).at("tokens_s").as_double());
    }
    std::printf("\n");
    return result;
}

Options parse(int argc, char** argv) {
    Options o;
    for (int i = 1; i < argc; ++i) {
        const std::string key = argv[i];
        const std::string value = i + 1 < argc ? argv[i + 1] : "";
        if (key == "--json") o.json = value;
        if (key == "--type") o.type = value;
        if (key == "--passes") o.passes_only = true;
        if (key == "--isa") o.isa = value == "avx2" ? CpuIsa::avx2 : value == "portable" ? CpuIsa::portable : CpuIsa::avx512;
        if (key == "--activations") {
            o.arithmetic = value == "int8" ? CpuArithmetic::int8 : value == "float32" ? CpuArithmetic::float32 : CpuArithmetic::int16;
        }
        if (key == "--threads") o.threads = {std::atoi(value.c_str())};
        if (key == "--rows") o.rows = {std::atoi(value.c_str())};
    }
    return o;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    shapes = make_shapes(options.type);
    RealClock clock;
    boost::json::object result;
    std::vector<double> read(2, 0);
    const CpuIsa isa = choose_isa(options.isa);
    result["isa"] = isa_name(isa);
    for (const int threads : {1, 2}) {
        const bench::Peaks p = bench::measure_peaks(clock, threads, kModelBytes);
        read[static_cast<size_t>(threads - 1)] = p.read_gb_s;
        std::printf("%d thread%s: read %.0f MiB %.1f GB/s, VPDPBUSD %.0f Gop/s, VPDPWSSD %.0f, FMA %.0f GFLOP/s\n", threads,
                    threads > 1 ? "s" : "", static_cast<double>(kModelBytes) / (1 << 20), p.read_gb_s, p.dpbusd_gop_s, p.dpwssd_gop_s,
                    p.fma_gop_s);
        result["peaks_" + std::to_string(threads)] = {{"read_gb_s", p.read_gb_s},
                                                      {"vpdpbusd_gop_s", p.dpbusd_gop_s},
                                                      {"vpdpwssd_gop_s", p.dpwssd_gop_s},
                                                      {"fma_gflop_s", p.fma_gop_s}};
    }
    for (const int threads : options.threads) result["threads_" + std::to_string(threads)] = run_threads(options, threads, read);
    if (!options.json.empty()) {
        std::FILE* file = std::fopen(options.json.c_str(), "w");
        if (file == nullptr) return 1;
        std::fprintf(file, "%s\n", boost::json::serialize(result).c_str());
        std::fclose(file);
    }
    return 0;
}
