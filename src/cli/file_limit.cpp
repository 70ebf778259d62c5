// The open-file limit. Called once, before any thread starts.
#include "cli/file_limit.h"

#include <sys/resource.h>

#include <takt/error.h>

namespace takt::cli {

namespace {

// Files beside connections: standard streams, model shards, device nodes, the epoll and event descriptors, connections that are refused.
constexpr rlim_t kOtherFiles = 96;

}  // namespace

void raise_file_limit(const Config& config) {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    const auto wanted = static_cast<rlim_t>(config.server.max_connections) + kOtherFiles;
    if (limit.rlim_cur != RLIM_INFINITY && wanted > limit.rlim_cur) {
        throw config_error("server.max_connections: found " + std::to_string(config.server.max_connections) +
                           ", allowed " + std::to_string(limit.rlim_cur > kOtherFiles ? limit.rlim_cur - kOtherFiles : 0) +
                           " by this system's limit of " + std::to_string(limit.rlim_cur) + " open files (ulimit -Hn)");
    }
}

}  // namespace takt::cli
