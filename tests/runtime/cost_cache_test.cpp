// CostCache: tables of several devices in one file; broken files cost nothing but the table.
#include "runtime/cost_cache.h"

#include <filesystem>
#include <fstream>

#include "catch.h"
#include "temporary_folder.h"

namespace takt {
namespace {

struct Folder : test::TemporaryFolder {
    [[nodiscard]] std::string file() const { return TemporaryFolder::file("deeper/costs"); }
};

}  // namespace

TEST_CASE("a table comes back for its own key only", "[cost_cache]") {
    const Folder folder;
    const std::string a = cost_cache_key("cpu avx512", 2, "m", 100), b = cost_cache_key("cpu avx512", 4, "m", 100);
    CHECK(a != b);
    CHECK(read_cost_cache(folder.file(), a).empty());
    REQUIRE(write_cost_cache(folder.file(), a, "one\ntwo\n"));
    REQUIRE(write_cost_cache(folder.file(), b, "three\n"));
    CHECK(read_cost_cache(folder.file(), a) == "one\ntwo\n");
    CHECK(read_cost_cache(folder.file(), b) == "three\n");
    REQUIRE(write_cost_cache(folder.file(), a, "four\n"));
    CHECK(read_cost_cache(folder.file(), a) == "four\n");
    CHECK(read_cost_cache(folder.file(), b) == "three\n");
    CHECK_FALSE(std::filesystem::exists(folder.file() + ".new"));
}

TEST_CASE("the latest sixteen tables are kept", "[cost_cache]") {
    const Folder folder;
    for (int i = 0; i < 20; ++i) REQUIRE(write_cost_cache(folder.file(), "key " + std::to_string(i), "t\n"));
    CHECK(read_cost_cache(folder.file(), "key 3").empty());
    CHECK(read_cost_cache(folder.file(), "key 4") == "t\n");
    CHECK(read_cost_cache(folder.file(), "key 19") == "t\n");
}

TEST_CASE("a broken file is as good as none, and a folder that cannot be made is no error", "[cost_cache]") {
    const Folder folder;
    REQUIRE(write_cost_cache(folder.file(), "a", "one\ntwo\n"));
    for (const char* text : {"", "something else\n", "takt-cost-cache 1\na\nx\none\n", "takt-cost-cache 1\na\n2\none\n",
                             "takt-cost-cache 1\na\n-1\n", "takt-cost-cache 1\na\n99999999\n"}) {
        std::ofstream(folder.file(), std::ios::binary) << text;
        CHECK(read_cost_cache(folder.file(), "a").empty());
        CHECK(write_cost_cache(folder.file(), "a", "again\n"));
        CHECK(read_cost_cache(folder.file(), "a") == "again\n");
    }
    CHECK_FALSE(write_cost_cache("/dev/null/no/folder", "a", "t\n"));
}

}  // namespace takt
