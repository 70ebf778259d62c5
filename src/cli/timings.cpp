// A request's timings as text.
#include "cli/timings.h"

#include <cstdio>

namespace takt::cli {

void print_timings(const RequestResult& result) {
    const Timings& t = result.timings;
    const Usage& usage = result.usage;
    const double rate = t.decode_ms > 0 && usage.completion_tokens > 1
                            ? static_cast<double>(usage.completion_tokens - 1) / t.decode_ms * 1000
                            : 0;
    std::fprintf(stderr,
                 "prompt %lld tokens (%lld cached), %lld generated; queue %.1f ms, first token %.1f ms, prefill %.1f ms, "
                 "decode %.1f ms (%.1f tokens/s), gap p50 %.2f ms, max %.2f ms, preemptions %d, seed %llu\n",
                 static_cast<long long>(usage.prompt_tokens), static_cast<long long>(usage.cached_tokens),
                 static_cast<long long>(usage.completion_tokens), t.queue_ms, t.ttft_ms, t.prefill_ms, t.decode_ms, rate,
                 t.itl_p50_ms, t.itl_max_ms, t.preemptions, static_cast<unsigned long long>(result.seed));
}

}  // namespace takt::cli
