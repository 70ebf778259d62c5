// Encoding of texts with a tokenizer.json on one thread, special tokens taken as text's own: bytes a second with the cache of words
// empty (each of three rounds has a new tokenizer; the best counts) and once more with it filled. bench/run_cpu.py runs it beside the
// Rust package. tokenizer_bench TOKENIZER.json TEXTS.json (a list of strings)
#include <boost/json.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "model/tokenizer_json.h"

namespace {

std::string read_file(const char* path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

/// Encodes all texts; bytes a second, and the number of tokens in `tokens`.
double encode_all(const takt::Tokenizer& tokenizer, const std::vector<std::string>& texts, size_t& tokens) {
    takt::EncodeOptions options;
    options.parse_special = true;
    options.bos = takt::BosPolicy::never;
    size_t bytes = 0;
    tokens = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& text : texts) {
        tokens += tokenizer.encode(text, options).size();
        bytes += text.size();
    }
    return static_cast<double>(bytes) / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER.json TEXTS.json\n"), 2;
    const auto spec = takt::parse_tokenizer_json(read_file(argv[1]));
    if (!spec) return std::fprintf(stderr, "%s: %s\n", argv[1], spec.error().c_str()), 1;
    std::vector<std::string> texts;
    const boost::json::value list = boost::json::parse(read_file(argv[2]));
    for (const auto& text : list.as_array()) texts.emplace_back(text.as_string());
    double best = 0, again = 0;
    size_t tokens = 0;
    for (int round = 0; round < 3; ++round) {
        const auto tokenizer = takt::make_tokenizer(spec.value());
        if (!tokenizer) return std::fprintf(stderr, "%s: %s\n", argv[1], tokenizer.error().c_str()), 1;
        best = std::max(best, encode_all(tokenizer.value(), texts, tokens));
        again = std::max(again, encode_all(tokenizer.value(), texts, tokens));
    }
    const boost::json::object result{{"bytes_per_second", best}, {"bytes_per_second_again", again}, {"tokens", tokens}};
    std::cout << boost::json::serialize(result) << "\n";
    return 0;
}
