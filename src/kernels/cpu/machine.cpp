// Reads /proc/meminfo and the control group (version 2, then 1); CPUID through the compiler's builtins, ARM's flags from the loader.
#include "kernels/cpu/machine.h"

#include <sched.h>
#include <unistd.h>
#ifdef TAKT_HAVE_NEON_ISA
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

namespace takt::cpu {
namespace {

std::optional<uint64_t> read_number(const char* path) {
    std::ifstream file(path);
    uint64_t value = 0;
    if (file >> value) return value;   // "max" is no number: no limit
    return std::nullopt;
}

std::optional<uint64_t> meminfo(const char* key) {
    std::ifstream file("/proc/meminfo");
    std::string name;
    uint64_t kilobytes = 0;
    std::string rest;
    while (file >> name >> kilobytes && std::getline(file, rest)) {
        if (name == key) return kilobytes * 1024;
    }
    return std::nullopt;
}

void apply_limit(std::optional<uint64_t> limit, std::optional<uint64_t> used, uint64_t* free_bytes, uint64_t* total_bytes) {
    if (!limit.has_value() || *limit >= *total_bytes) return;
    *total_bytes = *limit;
    *free_bytes = std::min(*free_bytes, *limit - std::min(*limit, used.value_or(0)));
}

/// Quota over period of the control group, rounded up; 0: none.
int32_t quota_cores() {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    double quota = 0;
    double period = 0;
    if (file >> quota >> period && period > 0) return static_cast<int32_t>((quota + period - 1) / period);
    const auto old_quota = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    const auto old_period = read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (!old_quota.has_value() || !old_period.has_value() || *old_period == 0) return 0;
    return static_cast<int32_t>((*old_quota + *old_period - 1) / *old_period);
}

bool is_intel() {
#ifdef TAKT_HAVE_X86_ISA
    __builtin_cpu_init();
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

CpuIsa best_isa() {
#ifdef TAKT_HAVE_X86_ISA
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    if (avx2 && avx512) return CpuIsa::avx512;
    if (avx2) return CpuIsa::avx2;
#endif
#ifdef TAKT_HAVE_NEON_ISA
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) return CpuIsa::neon;
#endif
    return CpuIsa::portable;
}

}  // namespace

int32_t num_cores() {
    int32_t cores = static_cast<int32_t>(std::thread::hardware_concurrency());
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
#endif
    const int32_t quota = quota_cores();
    if (quota > 0) cores = std::min(cores, quota);
    return std::max(cores, 1);
}

CpuIsa choose_isa(CpuIsa wanted) {
    const CpuIsa best = best_isa();
    if (wanted == CpuIsa::automatic) return best;
    if (wanted == CpuIsa::neon && best != CpuIsa::neon) return CpuIsa::portable;   // of another kind of machine
    return static_cast<int>(wanted) < static_cast<int>(best) ? wanted : best;
}

bool adds_beside_dots() {
#ifdef TAKT_HAVE_X86_ISA
    if (!is_intel()) return true;
    return __builtin_cpu_is("icelake-client") || __builtin_cpu_is("tigerlake") || __builtin_cpu_is("rocketlake");
#else
    return true;
#endif
}

int64_t one_row_fetches_ahead() {
    static const bool kAsks = is_intel();
    return kAsks ? 4096 : 0;
}

const char* isa_name(CpuIsa isa) {
    switch (isa) {
        case CpuIsa::avx512: return "avx512";
        case CpuIsa::avx2: return "avx2";
        case CpuIsa::neon: return "neon";
        default: return "portable";
    }
}

void host_memory(uint64_t* free_bytes, uint64_t* total_bytes) {
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long free_pages = sysconf(_SC_AVPHYS_PAGES);
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    *total_bytes = meminfo("MemTotal:").value_or(pages > 0 ? static_cast<uint64_t>(pages) * page : 0);
    *free_bytes = meminfo("MemAvailable:").value_or(free_pages > 0 ? static_cast<uint64_t>(free_pages) * page : 0);
    apply_limit(read_number("/sys/fs/cgroup/memory.max"), read_number("/sys/fs/cgroup/memory.current"), free_bytes,
                total_bytes);
    apply_limit(read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
                read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes"), free_bytes, total_bytes);
}

}  // namespace takt::cpu
