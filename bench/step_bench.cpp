// step_bench [--set KEY=VALUE]... [--truth FILE] [--json FILE] [options] SCENARIO...: drives a whole engine through the library on any
// device and writes what it found as JSON. Scenarios: truth, equal, decode, insert, apart.
#include <boost/json.hpp>

#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "step/scenarios.h"

namespace {

using namespace takt::bench;

template <class Number>
std::vector<Number> numbers(const std::string& text) {
    std::vector<Number> all;
    std::stringstream in(text);
    for (std::string part; std::getline(in, part, ',');) all.push_back(static_cast<Number>(std::stod(part)));
    return all;
}

int usage() {
    std::fprintf(stderr,
                 "usage: step_bench [--set KEY=VALUE]... [--truth FILE] [--json FILE] [--batches 1,8] [--context N] [--steps N]\n"
                 "                    [--insert 8192] [--chunks 256] [--streams 1,16] [--itl 10,15] [--max-running N] [--records 1]\n"
                 "                    truth|equal|decode|insert|apart...\n");
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    BenchOptions options;
    std::string json_path;
    std::vector<std::string> scenarios;
    const std::map<std::string, std::function<void(const std::string&)>> flags = {
        {"--set", [&](const std::string& v) { options.set.push_back(v); }},
        {"--truth", [&](const std::string& v) { options.truth = v; }},
        {"--json", [&](const std::string& v) { json_path = v; }},
        {"--batches", [&](const std::string& v) { options.batches = numbers<int>(v); }},
        {"--context", [&](const std::string& v) { options.context = std::stoi(v); }},
        {"--steps", [&](const std::string& v) { options.steps = std::stoi(v); }},
        {"--insert", [&](const std::string& v) { options.inserts = numbers<int>(v); }},
        {"--chunks", [&](const std::string& v) { options.chunks = numbers<int>(v); }},
        {"--streams", [&](const std::string& v) { options.streams = numbers<int>(v); }},
        {"--itl", [&](const std::string& v) { options.itl_ms = numbers<double>(v); }},
        {"--records", [&](const std::string& v) { options.records = v != "0"; }},
        {"--max-running", [&](const std::string& v) { options.max_running = std::stoi(v); }},
    };
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (const auto flag = flags.find(word); flag != flags.end() && i + 1 < argc) {
            flag->second(argv[++i]);
        } else if (word.rfind("--", 0) == 0) {
            return usage();
        } else {
            scenarios.push_back(word);
        }
    }
    const std::map<std::string, boost::json::object (*)(const BenchOptions&)> known = {
        {"truth", run_truth}, {"equal", run_equal}, {"decode", run_decode}, {"insert", run_insert},
        {"apart", run_apart}};
    if (scenarios.empty()) return usage();
    boost::json::object results;
    int code = 0;
    for (const std::string& name : scenarios) {
        const auto scenario = known.find(name);
        if (scenario == known.end()) return usage();
        try {
            boost::json::object found = scenario->second(options);
            if (found.contains("passed") && !found.at("passed").as_bool()) code = 1;
            results[name] = std::move(found);
        } catch (const std::exception& error) {
            std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
            results[name] = boost::json::object{{"error", error.what()}};
            code = 1;
        }
        // After every scenario: what was found stays even where a later one does not come back.
        if (!json_path.empty()) std::ofstream(json_path) << boost::json::serialize(results) << "\n";
    }
    return code;
}
