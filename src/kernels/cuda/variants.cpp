// Reads the trials' names from the environment.
#include "kernels/cuda/variants.h"

#include <cstdlib>
#include <string>

namespace takt::cuda {
namespace {

void set(Trials& t, const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const int32_t value = equals == std::string::npos ? 1 : std::atoi(word.c_str() + equals + 1);
    if (name == "qkv_end") t.qkv_end_rows = value;
    if (name == "qkv_splits") t.qkv_end_splits = value;
    if (name == "qkv_columns") t.qkv_end_columns = value;
    if (name == "panels") t.panels = value != 0;
    if (name == "one_kernel") t.one_kernel = value != 0;
}

Trials read_trials() {
    Trials t;
    const char* found = std::getenv("TAKT_CUDA_TRIALS");
    const std::string words = found != nullptr ? found : "";
    for (size_t at = 0; at < words.size();) {
        const size_t end = words.find(',', at);
        set(t, words.substr(at, end - at));
        at = end == std::string::npos ? words.size() : end + 1;
    }
    return t;
}

}   // namespace

Trials& trials() {
    static Trials found = read_trials();
    return found;
}

}   // namespace takt::cuda
