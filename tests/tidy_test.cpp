// Holds the tree against the architecture's rules that a scan can check, and each rule against small samples that break
// it, so that a rule that has stopped working fails here too.
#include "catch.h"
#include "tidy/rules.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

using takt::tidy::Findings;
using takt::tidy::SourceFile;

namespace {

const std::filesystem::path kRoot = TAKT_SOURCE_ROOT;

bool is_source(const std::filesystem::path& path) {
    const std::string extension = path.extension().string();
    return extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh";
}

std::vector<SourceFile> read_tree() {
    std::vector<SourceFile> files;
    for (const char* folder : {"include", "src", "tests", "bench", "examples"}) {
        for (const auto& entry : std::filesystem::recursive_directory_iterator(kRoot / folder)) {
            if (!entry.is_regular_file() || !is_source(entry.path())) continue;
            std::ifstream in(entry.path(), std::ios::binary);
            std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
            files.emplace_back(std::filesystem::relative(entry.path(), kRoot).generic_string(), std::move(text));
        }
    }
    std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path() < b.path(); });
    return files;
}

bool breaks(const std::string& rule, const std::string& path, const std::string& text) {
    const Findings found = check_all(SourceFile(path, text));
    return std::any_of(found.begin(), found.end(), [&](const auto& finding) { return finding.rule == rule; });
}

// The statement inside a coroutine of an otherwise clean file.
bool breaks_await(const std::string& statement) {
    return breaks("co_await", "src/runtime/a.cpp", "// A.\nawaitable<void> f() {\n    " + statement + "\n}\n");
}

std::string lines(std::size_t count, const std::string& line) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i) out += line + "\n";
    return out;
}

}  // namespace

TEST_CASE("the tree keeps every rule") {
    const std::vector<SourceFile> files = read_tree();
    CHECK(files.size() >= 20);
    for (const auto& file : files) {
        for (const auto& finding : check_all(file)) {
            FAIL_CHECK(finding.path << ":" << finding.line << ": " << finding.rule << ": " << finding.message);
        }
    }
}

TEST_CASE("include arrows point down") {
    CHECK(breaks("include-arrow", "src/kernels/a.cpp", "// A.\n#include \"model/b.h\"\n"));
    CHECK(breaks("include-arrow", "src/kernels/a.cpp", "// A.\n#include <takt/engine.h>\n"));
    CHECK(breaks("include-arrow", "src/model/a.cpp", "// A.\n#include \"runtime/b.h\"\n"));
    CHECK(breaks("include-arrow", "src/runtime/a.cpp", "// A.\n#include \"server/b.h\"\n"));
    CHECK(breaks("include-arrow", "src/server/a.cpp", "// A.\n#include \"runtime/b.h\"\n"));
    CHECK(breaks("include-arrow", "src/cli/a.cpp", "// A.\n  #  include \"kernels/b.h\"\n"));
    CHECK(breaks("include-arrow", "include/takt/a.h", "// A.\n#pragma once\n#include \"kernels/b.h\"\n"));
    CHECK(breaks("include-path", "src/runtime/a.cpp", "// A.\n#include \"../model/b.h\"\n"));
    CHECK(breaks("no-tests-in-src", "src/runtime/a.cpp", "// A.\n#include \"tests/b.h\"\n"));
    CHECK_FALSE(breaks("include-arrow", "src/runtime/a.cpp", "// A.\n#include \"model/b.h\"\n#include <takt/a.h>\n"));
    CHECK_FALSE(breaks("include-arrow", "src/kernels/a.cpp", "// A.\n// #include \"model/b.h\"\n"));
    CHECK_FALSE(breaks("include-arrow", "src/server/a.cpp", "// A.\n#include \"server/b.h\"\n#include <vector>\n"));
}

TEST_CASE("heavy headers stay in their folders") {
    CHECK(breaks("placement", "src/kernels/cpu/a.cpp", "// A.\n#include <cuda_runtime.h>\n"));
    CHECK(breaks("placement", "src/runtime/a.cpp", "// A.\n#include <cuda.h>\n"));
    CHECK(breaks("placement", "src/runtime/a.cpp", "// A.\n#include <boost/beast/core.hpp>\n"));
    CHECK(breaks("placement", "src/model/a.cpp", "// A.\n#include <boost/asio/post.hpp>\n"));
    CHECK(breaks("placement", "src/kernels/a.cpp", "// A.\n#include <boost/system/result.hpp>\n"));
    CHECK(breaks("placement", "src/kernels/a.cpp", "// A.\n#include <boost/json.hpp>\n"));
    CHECK(breaks("placement", "src/cli/a.cpp", "// A.\n#include <toml++/toml.h>\n"));
    CHECK_FALSE(breaks("placement", "src/kernels/cuda/a.cpp", "// A.\n#include <cuda_runtime.h>\n"));
    CHECK_FALSE(breaks("placement", "src/server/a.cpp", "// A.\n#include <boost/beast/core.hpp>\n"));
    CHECK_FALSE(breaks("placement", "src/runtime/config_toml.cpp", "// A.\n#include <toml++/toml.h>\n"));
    CHECK_FALSE(breaks("placement", "src/model/a.cpp", "// A.\n#include <boost/json.hpp>\n"));
}

TEST_CASE("draws stand in one argument at most") {
    CHECK(breaks("chance", "tests/a_test.cpp", "// A.\nint a = f(random.between(1, 2), random.below(3));\n"));
    CHECK(breaks("chance", "tests/a_test.cpp", "// A.\nint a = f(1 + random() % 4,\n  g(2, random() % 3));\n"));
    CHECK_FALSE(breaks("chance", "tests/a_test.cpp", "// A.\nint a = f(random.between(1, 2), 5);\n"));
    CHECK_FALSE(breaks("chance", "tests/a_test.cpp", "// A.\nT a{random.below(3), random.below(4)};\n"));   // braces have an order
    CHECK_FALSE(breaks("chance", "tests/a_test.cpp", "// A.\nvoid f() { for (int i = random(); i < 3; i += random()) g(); }\n"));
}

TEST_CASE("words stay where they belong") {
    CHECK(breaks("clock", "src/runtime/loop.cpp", "// A.\nauto t = std::chrono::steady_clock::now();\n"));
    CHECK(breaks("clock", "src/kernels/cpu/a.cpp", "// A.\nvoid f() { clock_gettime(0, nullptr); }\n"));
    CHECK_FALSE(breaks("clock", "src/runtime/clock.cpp", "// A.\nauto t = std::chrono::steady_clock::now();\n"));
    CHECK_FALSE(breaks("clock", "src/runtime/loop.cpp", "// steady_clock::now is elsewhere.\nint t;\n"));
    CHECK(breaks("getenv", "src/runtime/a.cpp", "// A.\nauto e = std::getenv(\"HOME\");\n"));
    CHECK_FALSE(breaks("getenv", "src/cli/main.cpp", "// A.\nauto e = std::getenv(\"HOME\");\n"));
    CHECK(breaks("rand", "tests/a_test.cpp", "// A.\nint r = std::rand();\n"));
    CHECK_FALSE(breaks("rand", "src/a.cpp", "// A.\nint r = operand(1) + brand (2);\n"));
    CHECK(breaks("detached", "src/server/a.cpp", "// A.\nvoid f() { co_spawn(x, g(), asio::detached); }\n"));
    CHECK(breaks("detached", "src/server/a.cpp", "// A.\nvoid f() { thread_.detach(); }\n"));
    CHECK(breaks("throw", "src/model/a.cpp", "// A.\nvoid f() { throw 1; }\n"));
    CHECK_FALSE(breaks("throw", "src/runtime/a.cpp", "// A.\nvoid f() { throw 1; }\n"));
    CHECK_FALSE(breaks("throw", "src/model/a.cpp", "// A.\nconst char* s = \"throw\"; // throw\n"));
    CHECK(breaks("unfinished", "src/model/a.cpp", std::string("// A.\nint x;  // TO") + "DO later\n"));
}

TEST_CASE("files are named, opened and guarded") {
    CHECK(breaks("file-name", "src/runtime/string_utils.h", "// A.\n#pragma once\n"));
    CHECK(breaks("file-name", "tests/common.h", "// A.\n#pragma once\n"));
    CHECK(breaks("file-name", "src/runtime/BlockPool.h", "// A.\n#pragma once\n"));
    CHECK_FALSE(breaks("file-name", "src/runtime/block_pool.h", "// A.\n#pragma once\n"));
    CHECK(breaks("opening-comment", "src/runtime/a.h", "#pragma once\n"));
    CHECK(breaks("pragma-once", "src/runtime/a.h", "// A, has no #pragma once.\nint a();\n"));
}

TEST_CASE("files, lines and functions have a limit") {
    CHECK(breaks("file-length", "src/runtime/a.cpp", "// A.\n" + lines(500, "int x;")));
    CHECK_FALSE(breaks("file-length", "src/runtime/a.cpp", "// A.\n" + lines(499, "int x;")));
    CHECK(breaks("line-length", "src/runtime/a.cpp", "// A.\n// " + std::string(138, 'x') + "\n"));
    CHECK_FALSE(breaks("line-length", "src/runtime/a.cpp", "// A.\n// " + std::string(137, 'x') + "\n"));
    const std::string body69 = lines(69, "    g('{', \"}\");");
    const std::string body68 = lines(68, "    if (x) { g(); } else { h(1'000); }");
    const auto is_long = [](const std::string& text) {
        return breaks("function-length", "src/a.cpp", "// A.\n" + text);
    };
    CHECK(is_long("void f(int x) {\n" + body69 + "}\n"));
    CHECK_FALSE(is_long("void f(int x) {\n" + body68 + "}\n"));
    CHECK(is_long("namespace n {\nclass A {\npublic:\nint f() const {\n" + body69 + "}\n};\n}\n"));
    CHECK(is_long("A::A(int b) : b_{b}, c_(b) {\n" + body69 + "}\n"));
    CHECK(is_long("bool operator==(A a, A b) {\n" + body69 + "}\n"));
    CHECK(is_long("template <class T = int>\nauto f(T x = {}) -> int {\n" + body69 + "}\n"));
    CHECK(is_long("TEST_CASE(\"x\") {\n" + body69 + "}\n"));
    CHECK_FALSE(is_long("struct A {\n" + lines(80, "    int f() { return 1; }") + "};\n"));
    CHECK_FALSE(is_long("const int t[] = {\n" + lines(80, "    f(1),") + "};\n"));
    CHECK(breaks("braces", "src/a.cpp", "// A.\nvoid f() {\n"));
}

TEST_CASE("co_await stands alone") {
    for (const char* bad : {
             "if (co_await f()) co_return;",
             "while (co_await f()) g();",
             "switch (co_await f()) { default: break; }",
             "for (auto x : co_await f()) g(x);",
             "return g(co_await f());",
             "g(co_await f());",
             "auto x = 1 + co_await f();",
             "auto x = co_await f() && ready;",
             "auto x = co_await f() ? 1 : 2;",
             "auto x = a ? co_await f() : 2;",
             "Agg a{1, co_await f()};",
             "co_await f(Agg{1, 2});",
             "co_await f({1, 2});",
             "co_await f({.a = 1});",
             "co_await f([s] { g(s); });",
             "co_await f(x, [&](int y) { g(y); });",
             "co_await f(co_await g());",
             "if (ready) auto x = 1 + co_await f();",
         }) {
        INFO(bad);
        CHECK(breaks_await(bad));
    }
    for (const char* good : {
             "co_await f();",
             "auto x = co_await f(a, std::move(b));",
             "const Result<int> x = co_await f(Name(1), table[2]);",
             "auto [ec, n] = co_await op(as_tuple(use_awaitable));",
             "x = co_await f();",
             "state.x = co_await f();",
             "if (ready) co_await f();",
             "for (;;) { co_await f(); }",
             "while (ready) { auto x = co_await f(); }",
             "(void)co_await f();",
             "co_await (a() || b());",
             "// if (co_await f()) is broken\n    co_await f();",
         }) {
        INFO(good);
        CHECK_FALSE(breaks_await(good));
    }
}
