// The configuration reader: positions in errors, overrides, refusals of what a later version will take.
#include <cstdio>
#include <algorithm>
#include <fstream>
#include <iterator>
#include <variant>

#include <takt/takt.h>

#include "catch.h"
#include "runtime/config_schema.h"

namespace {

std::string error_of(const std::string& toml, const std::vector<std::string>& overrides = {}) {
    const std::string path = "config_test_input.toml";
    std::ofstream(path) << toml;
    std::string text = "accepted";
    try {
        (void)takt::load_config(path, overrides);
    } catch (const takt::config_error& error) {
        text = error.what();
    }
    std::remove(path.c_str());
    return text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("errors name file, line and column") {
    CHECK(has(error_of("[server]\nport = 99999\n"), "config_test_input.toml:2:8: server.port: expected a number from 0 to 65535"));
    CHECK(has(error_of("[server]\nprot = 1\n"), ":2:"));
    CHECK(has(error_of("[server]\nprot = 1\n"), "unknown key \"server.prot\""));
    CHECK(has(error_of("[server]\nprot = 1\n"), "allowed: host, port, tls_cert"));
    CHECK(has(error_of("[kv]\ndtype = 3\n"), ":2:9: kv.dtype: expected a string, found 3"));
    CHECK(has(error_of("[server]\nport = \"80\"\n"), ":2:8: server.port: expected an integer from 0 to 65535, found '80'"));
    CHECK(has(error_of("[sla]\nitl_ms = true\n"), ":2:10: sla.itl_ms: expected a number from 0.1 to 3600000, found true"));
    CHECK(has(error_of("[nonsense]\nx = 1\n"), "unknown section \"nonsense\"; allowed: model, device, kv"));
    CHECK(has(error_of("[kv]\ndtype = \"fp8\"\n"), "not available in this version"));
    CHECK(has(error_of("[device]\ngraph_batch_sizes = [3]\n"), ":2:21: device.graph_batch_sizes: a list that is not empty is not"));
    CHECK(has(error_of("[kv\n"), ":1:"));
    CHECK(has(error_of("[[tenant]]\nname = \"a\"\n"), "exactly one of key_sha256 and key_env"));
}

TEST_CASE("contradictions name the line, in lists of tables too") {
    const std::string tenant = "[[tenant]]\nname = \"a\"\nkey_env = \"K\"\n";
    CHECK(has(error_of(tenant + "[[tenant]]\nname = \"a\"\nkey_env = \"K\"\n"), ":5:8: tenant.name: the tenant \"a\" is named twice"));
    CHECK(has(error_of(tenant + "[[tenant]]\nname = \"b\"\n"), ":4:1: tenant.key_sha256: tenant \"b\" needs exactly one"));
    CHECK(has(error_of(tenant + "class = \"gold\"\n"), ":4:9: tenant.class: no class is named \"gold\""));
    CHECK(has(error_of("[[sla.class]]\nname = \"x\"\n[[sla.class]]\nitl_ms = 5\n"), ":3:1: sla.class.name: every"));
    CHECK(has(error_of("[server]\ntls_cert = \"x\"\n"), ":2:12: server.tls_cert: tls_cert and tls_key go together"));
    CHECK(has(error_of("[device]\nactivations = \"float32\"\n[kv]\ndtype = \"f16\"\n"), ":4:9: kv.dtype: "));
    CHECK(has(error_of("[device]\nactivations = \"float32\"\n[kv]\ndtype = \"int8\"\n"), ":4:9: kv.dtype: "));
    CHECK(has(error_of("[device]\nkind = \"cuda\"\n[kv]\ndtype = \"int8\"\n"), ":4:9: kv.dtype: \"int8\" is not available on CUDA"));
    CHECK(has(error_of("[device]\nkind = \"cuda\"\n[kv]\ndtype = \"f32\"\n"), ":4:9: kv.dtype: \"f32\" is not available on CUDA"));
    CHECK(error_of("[device]\nkind = \"cuda\"\n[kv]\ndtype = \"bf16\"\n") == "accepted");
    CHECK(error_of("[device]\nkind = \"cpu\"\n[kv]\ndtype = \"int8\"\n") == "accepted");
    CHECK(error_of("[kv]\ndtype = \"int8\"\n") == "accepted");   // auto: refused where a CUDA device is found
}

TEST_CASE("a key that stands where its digest belongs is not shown") {
    CHECK_FALSE(has(error_of("[[tenant]]\nname = \"a\"\nkey_sha256 = \"hunter2\"\n"), "hunter2"));
    CHECK_FALSE(has(error_of("[[tenant]]\nname = \"a\"\nkey_sha256 = 775533\n"), "775533"));
    CHECK_FALSE(has(error_of("[[tenant]]\nname = \"a\"\nkey = \"hunter2\"\n"), "hunter2"));
}

TEST_CASE("the repository's config.toml says the built-in defaults") {
    // But for the model: the file names the one that scripts/serve fetches.
    const takt::Config file = takt::load_config(TAKT_SOURCE_ROOT "/config.toml");
    takt::Config shown = file, built_in;
    CHECK(shown.model.path.find("SmolLM2") != std::string::npos);
    shown.model.path.clear();
    const std::vector<takt::ConfigKey> keys = takt::config_keys(shown), defaults = takt::config_keys(built_in);
    REQUIRE(keys.size() == defaults.size());
    std::ifstream in(TAKT_SOURCE_ROOT "/config.toml");
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    for (size_t i = 0; i < keys.size(); ++i) {
        INFO(keys[i].section << '.' << keys[i].name);
        std::visit([&](auto* value) { CHECK(*value == *std::get<decltype(value)>(defaults[i].target)); }, keys[i].target);
        // Each key has a line with a comment; one that is unset by default is commented out.
        const size_t section = text.find("[" + std::string(keys[i].section) + "]");
        REQUIRE(section != std::string::npos);
        const size_t at = text.find("\n" + std::string(keys[i].name) + " = ", section);
        const size_t unset = text.find("\n# " + std::string(keys[i].name) + " = ", section);
        const size_t line = std::min(at, unset);
        REQUIRE(line != std::string::npos);
        const std::string one = text.substr(line + 3, text.find('\n', line + 1) - line - 3);
        CHECK(one.find('#') != std::string::npos);
    }
}

TEST_CASE("every number's range ends where it says") {
    takt::Config any;
    for (const takt::ConfigKey& key : takt::config_keys(any)) {
        if (std::holds_alternative<std::string*>(key.target) || std::holds_alternative<bool*>(key.target)) continue;
        if (key.name == "allowed_origins" || key.name == "graph_batch_sizes") continue;
        const std::string name = std::string(key.section) + "." + std::string(key.name);
        const bool is_whole = !std::holds_alternative<double*>(key.target) && !std::holds_alternative<std::optional<double>*>(key.target);
        const auto taken = [&](double value) {
            char text[64];
            std::snprintf(text, sizeof text, is_whole ? "%.0f" : "%.17g", value);
            return error_of("", {name + "=" + text});
        };
        INFO(name);
        for (const double outside : {key.min - (is_whole ? 1 : 0.01), key.max * 1.01 + 1}) {
            if (outside > 9.2e18) continue;
            const std::string range = takt::number_text(key.min) + " to " + takt::number_text(key.max);
            CHECK(has(taken(outside), name + ": expected a number from " + range));
        }
        if (name == "kv.host_offload_mib") continue;   // its upper values are not in this version
        for (const double inside : {key.min, key.max}) CHECK(taken(inside) == "accepted");
    }
}

TEST_CASE("a file that is none is refused by its name, an empty one is taken") {
    const auto error_of_path = [](const std::string& path) {
        try {
            (void)takt::load_config(path, {});
        } catch (const takt::config_error& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    CHECK(has(error_of_path("/nowhere/at/all.toml"), "/nowhere/at/all.toml: cannot be read"));
    CHECK(has(error_of_path("/"), "/: cannot be read"));   // a folder opens like a file
    CHECK(error_of("") == "accepted");
}

TEST_CASE("overrides take TOML values and bare words") {
    const takt::Config c = takt::load_config("", {"device.kind=cpu", "sla.itl_ms=12.5", "server.port=0", "model.path=123"});
    CHECK(c.device.kind == "cpu");
    CHECK(c.sla.itl_ms == 12.5);
    CHECK(c.server.port == 0);
    CHECK(c.model.path == "123");
    CHECK_THROWS_AS(takt::load_config("", {"device.kind"}), takt::config_error);
    CHECK_THROWS_AS(takt::load_config("", {"device.nothing=1"}), takt::config_error);
    CHECK_THROWS_AS(takt::load_config("", {"server.port=x"}), takt::config_error);
}

TEST_CASE("classes inherit the default's scalars wherever they stand") {
    CHECK(error_of("[[sla.class]]\nname = \"gold\"\nitl_ms = 20\n") == "accepted");
    CHECK(has(error_of("[[sla.class]]\nname = \"a\"\n[[sla.class]]\nname = \"a\"\n"), "named twice"));
}
