// The configuration reader: positions in errors, overrides, refusals of what a later version will take.
#include <cstdio>
#include <fstream>

#include <takt/takt.h>

#include "catch.h"

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
    CHECK(has(error_of("[kv]\ndtype = 3\n"), "kv.dtype: expected a string"));
    CHECK(has(error_of("[nonsense]\nx = 1\n"), "unknown section"));
    CHECK(has(error_of("[kv]\ndtype = \"int8\"\n"), "not available in this version"));
    CHECK(has(error_of("[device]\ngraph_batch_sizes = [3]\n"), ":2:21: device.graph_batch_sizes: a list that is not empty is not"));
    CHECK(has(error_of("[kv\n"), ":1:"));
    CHECK(has(error_of("[[tenant]]\nname = \"a\"\n"), "exactly one of key_sha256 and key_env"));
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
