// Cutting chunks where the credit ends: never inside a character, nothing lost.
#include "server/credit.h"

#include "catch.h"

using namespace takt;
using namespace takt::server;

namespace {

// Token n is the byte n: a character of several bytes is several tokens.
std::string bytes_of(const std::vector<std::int32_t>& tokens) {
    std::string out;
    for (const std::int32_t token : tokens) out += static_cast<char>(token);
    return out;
}

Chunk chunk_of(const std::string& text) {
    Chunk out;
    out.index = 10;
    out.text = text;
    for (const char c : text) {
        out.tokens.push_back(static_cast<unsigned char>(c));
        TokenLogprob entry;
        entry.token = out.tokens.back();
        out.logprobs.push_back(entry);
    }
    return out;
}

}  // namespace

TEST_CASE("pieces are within the credit and join to the whole") {
    Chunk rest = chunk_of("hello");
    const Chunk first = take_front(rest, 2, bytes_of);
    CHECK(first.text == "he");
    CHECK(first.index == 10);
    CHECK(first.tokens.size() == 2);
    CHECK(first.logprobs.size() == 2);
    CHECK(rest.text == "llo");
    CHECK(rest.index == 12);
    CHECK(rest.logprobs.size() == 3);
    const Chunk second = take_front(rest, 3, bytes_of);
    CHECK(second.text == "llo");
    CHECK(rest.tokens.empty());
    CHECK(rest.text.empty());
}

TEST_CASE("a character is never cut") {
    Chunk rest = chunk_of("a\xF0\x9F\x98\x80z");
    CHECK(take_front(rest, 3, bytes_of).text == "a");
    // One credit, but the character is four tokens: it cannot be divided.
    CHECK(take_front(rest, 1, bytes_of).text == "\xF0\x9F\x98\x80");
    CHECK(take_front(rest, 1, bytes_of).text == "z");
    CHECK(rest.tokens.empty());
}

TEST_CASE("a chunk whose tokens do not spell its text goes whole") {
    Chunk rest = chunk_of("abc");
    rest.text = "xyz";
    const Chunk all = take_front(rest, 1, bytes_of);
    CHECK(all.text == "xyz");
    CHECK(all.tokens.size() == 3);
    CHECK(rest.tokens.empty());
}

TEST_CASE("tokens that have no text of their own leave with text, not alone") {
    const auto spelled = [](const std::vector<std::int32_t>& tokens) {
        std::string out;
        for (const std::int32_t token : tokens) out += token == 0 ? std::string() : std::string(1, static_cast<char>(token));
        return out;
    };
    Chunk rest = chunk_of("ab");
    rest.tokens.push_back(0);
    rest.logprobs.clear();
    const Chunk front = take_front(rest, 2, spelled);
    CHECK(front.text == "a");
    CHECK(front.tokens.size() == 1);
    CHECK(rest.text == "b");
    CHECK(rest.tokens.size() == 2);
}
