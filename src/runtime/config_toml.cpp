// Reads config.toml into Config, with file, line and column in every error. The only file that includes toml++.
#include <takt/error.h>

// toml++ asserts on some malformed keys where it should report them, and assumes the same where assertions are off: here such a
// text is an error like any other.
namespace takt::detail {
[[noreturn]] inline void refuse_text() { throw config_error("malformed TOML"); }
}  // namespace takt::detail
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) ((expr) ? static_cast<void>(0) : takt::detail::refuse_text())
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

#include <optional>
#include <sstream>

#include "runtime/config_schema.h"
#include "runtime/text_file.h"

namespace takt {
namespace {

std::string position(const toml::source_region& at) {
    std::string text = at.path ? *at.path : std::string("configuration");
    if (at.begin.line != 0) text += ":" + std::to_string(at.begin.line) + ":" + std::to_string(at.begin.column);
    return text + ": ";
}

[[noreturn]] void fail(const toml::node& node, const std::string& text) {
    throw config_error(position(node.source()) + text);
}

std::string type_text(const toml::node& node) {
    std::ostringstream out;
    out << node.type();
    return out.str();
}

std::string full_name(const ConfigKey& key) { return std::string(key.section) + "." + std::string(key.name); }

[[noreturn]] void fail_type(const toml::node& node, const ConfigKey& key, const char* wanted) {
    fail(node, full_name(key) + ": expected " + wanted + ", found " + type_text(node));
}

template <class T>
void assign_integer(const toml::node& node, const ConfigKey& key, T& target) {
    const toml::value<int64_t>* value = node.as_integer();
    if (value == nullptr) fail_type(node, key, "an integer");
    const double wide = static_cast<double>(value->get());
    if (wide < key.min || wide > key.max) {
        ConfigKey probe = key;
        double found = wide;
        probe.target = &found;
        fail(node, full_name(key) + ": " + check_value(probe));
    }
    target = static_cast<T>(value->get());
}

template <class T>
void assign_array(const toml::node& node, const ConfigKey& key, std::vector<T>& target) {
    const toml::array* array = node.as_array();
    if (array == nullptr) fail_type(node, key, "an array");
    target.clear();
    for (const toml::node& item : *array) {
        if constexpr (std::is_same_v<T, std::string>) {
            if (!item.is_string()) fail_type(item, key, "strings in the array");
            target.push_back(item.as_string()->get());
        } else {
            assign_integer(item, key, target.emplace_back());
        }
    }
}

void assign_number(const toml::node& node, const ConfigKey& key, double& target) {
    if (!node.is_number()) fail_type(node, key, "a number");
    target = node.value<double>().value_or(0.0);
}

void assign(const toml::node& node, const ConfigKey& key) {
    std::visit(
        [&](auto* target) {
            using T = std::remove_pointer_t<decltype(target)>;
            if constexpr (std::is_same_v<T, std::string>) {
                if (!node.is_string()) fail_type(node, key, "a string");
                *target = node.as_string()->get();
            } else if constexpr (std::is_same_v<T, bool>) {
                if (!node.is_boolean()) fail_type(node, key, "true or false");
                *target = node.as_boolean()->get();
            } else if constexpr (std::is_same_v<T, double>) {
                assign_number(node, key, *target);
            } else if constexpr (std::is_same_v<T, std::optional<double>>) {
                assign_number(node, key, target->emplace());
            } else if constexpr (std::is_integral_v<T>) {
                assign_integer(node, key, *target);
            } else {
                assign_array(node, key, *target);
            }
        },
        key.target);
    const std::string wrong = check_value(key);
    if (!wrong.empty()) fail(node, full_name(key) + ": " + wrong);
}

void assign_table(const toml::table& table, std::string_view section, const std::vector<ConfigKey>& keys) {
    for (auto&& [name, node] : table) {
        const ConfigKey* found = nullptr;
        for (const ConfigKey& key : keys) {
            if (key.section == section && key.name == name.str()) found = &key;
        }
        if (found == nullptr) fail(node, "unknown key \"" + std::string(section) + "." + std::string(name.str()) + "\"");
        assign(node, *found);
    }
}

void assign_classes(const toml::node& node, Config& config) {
    const toml::array* array = node.as_array();
    if (array == nullptr) fail(node, "sla.class: expected [[sla.class]] tables");
    for (const toml::node& item : *array) {
        const toml::table* table = item.as_table();
        if (table == nullptr) fail(item, "sla.class: expected [[sla.class]] tables");
        SlaClass& sla = config.sla.classes.emplace_back(static_cast<const SlaClass&>(config.sla));
        sla.name.clear();
        std::vector<ConfigKey> keys = sla_class_keys(sla, "sla.class");
        keys.push_back({"sla.class", "name", &sla.name, {}, {}, {}, {}});
        assign_table(*table, "sla.class", keys);
    }
}

void assign_tenants(const toml::node& node, Config& config) {
    const toml::array* array = node.as_array();
    if (array == nullptr) fail(node, "tenant: expected [[tenant]] tables");
    for (const toml::node& item : *array) {
        const toml::table* table = item.as_table();
        if (table == nullptr) fail(item, "tenant: expected [[tenant]] tables");
        TenantSection& tenant = config.tenants.emplace_back();
        assign_table(*table, "tenant", tenant_keys(tenant));
    }
}

/// [sla] with its scalars first, so that [[sla.class]] tables inherit them wherever they stand in the file.
void assign_sla(const toml::table& table, Config& config) {
    const toml::node* classes = table.get("class");
    const std::vector<ConfigKey> keys = sla_class_keys(config.sla, "sla");
    for (auto&& [name, node] : table) {
        if (name.str() == "class") continue;
        const ConfigKey* found = nullptr;
        for (const ConfigKey& key : keys) {
            if (key.name == name.str()) found = &key;
        }
        if (found == nullptr) fail(node, "unknown key \"sla." + std::string(name.str()) + "\"");
        assign(node, *found);
    }
    if (classes != nullptr) assign_classes(*classes, config);
}

bool is_section(std::string_view name) {
    static constexpr std::string_view kSections[] = {"model", "device", "kv", "scheduler", "sla", "server", "sim", "log"};
    for (std::string_view section : kSections) {
        if (section == name) return true;
    }
    return false;
}

void assign_root(const toml::table& root, Config& config) {
    const std::vector<ConfigKey> keys = config_keys(config);
    for (auto&& [name, node] : root) {
        if (name.str() == "tenant") {
            assign_tenants(node, config);
            continue;
        }
        if (!is_section(name.str())) fail(node, "unknown section \"" + std::string(name.str()) + "\"");
        const toml::table* table = node.as_table();
        if (table == nullptr) fail(node, std::string(name.str()) + ": expected a section [" + std::string(name.str()) + "]");
        if (name.str() == "sla") {
            assign_sla(*table, config);
        } else {
            assign_table(*table, name.str(), keys);
        }
    }
}

toml::table parse(const std::string& text, const std::string& path) {
    toml::parse_result parsed = [&] {
        try {
            return toml::parse(text, path);
        } catch (const config_error&) {
            throw config_error(std::string(path.empty() ? "configuration" : path.c_str()).append(": malformed TOML"));
        }
    }();
    if (!parsed) {
        throw config_error(position(parsed.error().source()) + std::string(parsed.error().description()));
    }
    return std::move(parsed).table();
}

/// `v = value` as a table, if it is TOML.
std::optional<toml::table> parse_value(const std::string& value, const std::string& source) {
    try {
        toml::parse_result parsed = toml::parse(std::string("v = ").append(value), source);
        if (parsed && parsed.table().size() == 1) return std::move(parsed).table();
    } catch (const config_error&) {   // malformed beyond what the library reports
    }
    return std::nullopt;
}

const toml::node* find(const toml::table& root, const std::string& section, const std::string& name) {
    const toml::node_view<const toml::node> view = root.at_path(section + "." + name);
    return view.node();
}

void apply_override(const std::string& override_text, Config& config) {
    const size_t equals = override_text.find('=');
    const std::string key_text = override_text.substr(0, equals);
    const size_t dot = key_text.find('.');
    if (equals == std::string::npos || dot == std::string::npos) {
        throw config_error("--set " + override_text + ": expected section.key=value");
    }
    const std::string value = override_text.substr(equals + 1);
    const std::string source = "--set " + key_text;
    std::optional<toml::table> parsed = parse_value(value, source);
    toml::table table;
    if (parsed) {
        table = std::move(*parsed);
    } else {
        table.insert("v", value);   // a bare word is a string
    }
    const std::vector<ConfigKey> keys = config_keys(config);
    for (const ConfigKey& key : keys) {
        if (full_name(key) != key_text) continue;
        // A word that TOML would read as another type still serves a string key (a model path of digits, say).
        if (std::holds_alternative<std::string*>(key.target) && !table.get("v")->is_string()) {
            table.clear();
            table.insert("v", value);
        }
        try {
            assign(*table.get("v"), key);
        } catch (const config_error& error) {
            std::string text = error.what();
            if (text.rfind("configuration: ", 0) == 0) text.erase(0, 15);
            throw config_error(text.rfind("--set", 0) == 0 ? text : source + ": " + text);
        }
        return;
    }
    throw config_error(source + ": unknown key \"" + key_text + "\"");
}

}  // namespace

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
    Config config;
    toml::table root;
    if (!path.empty()) {
        root = parse(read_text_file(path), path);
        assign_root(root, config);
    }
    for (const std::string& text : overrides) apply_override(text, config);
    if (const auto wrong = find_contradiction(config)) {
        const toml::node* node = find(root, wrong->section, wrong->name);
        const std::string where = node != nullptr ? position(node->source()) : path.empty() ? "" : path + ": ";
        throw config_error(where + wrong->section + "." + wrong->name + ": " + wrong->text);
    }
    return config;
}

void validate(const Config& config) {
    Config copy = config;
    for (const ConfigKey& key : config_keys(copy)) {
        const std::string wrong = check_value(key);
        if (!wrong.empty()) throw config_error(full_name(key) + ": " + wrong);
    }
    for (SlaClass& sla : copy.sla.classes) {
        for (const ConfigKey& key : sla_class_keys(sla, "sla.class")) {
            const std::string wrong = check_value(key);
            if (!wrong.empty()) throw config_error(full_name(key) + ": " + wrong);
        }
    }
    for (TenantSection& tenant : copy.tenants) {
        for (const ConfigKey& key : tenant_keys(tenant)) {
            const std::string wrong = check_value(key);
            if (!wrong.empty()) throw config_error(full_name(key) + ": " + wrong);
        }
    }
    if (const auto wrong = find_contradiction(config)) {
        throw config_error(wrong->section + "." + wrong->name + ": " + wrong->text);
    }
}

}  // namespace takt
