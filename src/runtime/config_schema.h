// ConfigSchema: which keys config.toml may hold, where each goes in Config, and its range. One table serves the reader, the
// overrides and `validate`. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <takt/config.h>

namespace takt {

/// Where a value goes. Pointers into one Config.
using ConfigTarget = std::variant<std::string*, int32_t*, int64_t*, uint64_t*, double*, bool*, std::optional<double>*,
                                  std::vector<int32_t>*, std::vector<std::string>*>;

struct ConfigKey {
    std::string_view section;
    std::string_view name;
    ConfigTarget target;
    double min = std::numeric_limits<double>::lowest();
    double max = std::numeric_limits<double>::max();
    std::vector<std::string_view> words;         ///< allowed words of a string; empty: any
    std::vector<std::string_view> unavailable;   ///< of those, the ones this version refuses
};

std::vector<ConfigKey> config_keys(Config& config);
std::vector<ConfigKey> sla_class_keys(SlaClass& sla, std::string_view section);
std::vector<ConfigKey> tenant_keys(TenantSection& tenant);

/// As messages show a bound: whole numbers without a point.
std::string number_text(double value);

/// Range, word and availability check of one key's present value; empty if it is allowed, else "expected ..., found ...".
std::string check_value(const ConfigKey& key);

/// Why a CUDA device cannot hold K and V of kv.dtype `name`; empty if it can. Asked again where device.kind = "auto" found one.
std::string refuse_cuda_kv(const std::string& name);

/// Contradictions between keys (and values that a later version will take); empty if there is none, else the sentence, and the
/// key it is about in `section` and `name`.
struct Contradiction {
    std::string section, name, text;
    size_t index = 0;   ///< of the table, where the section is a list of them
};
std::optional<Contradiction> find_contradiction(const Config& config);

}  // namespace takt
