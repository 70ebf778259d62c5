// Answers in the OpenAI form: the fields that its clients require.
#include "server/openai_answer.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "catch.h"

using namespace takt;
using namespace takt::server;
namespace json = boost::json;

namespace {

AnswerHead head(bool chat) {
    AnswerHead out;
    out.chat = chat;
    out.id = "id-1";
    out.model = "m";
    out.created = 1764450000;
    return out;
}

TokenLogprob logprob(const std::string& text, double value) {
    TokenLogprob out;
    out.text = text;
    out.logprob = value;
    out.top.push_back({1, "other", -3});
    return out;
}

Usage usage() {
    Usage out;
    out.prompt_tokens = 9;
    out.completion_tokens = 2;
    out.cached_tokens = 4;
    return out;
}

}  // namespace

TEST_CASE("a whole chat answer") {
    AnswerChoice choice;
    choice.text = "Hello!";
    choice.reason = FinishReason::length;
    choice.logprobs.push_back(logprob("\xC3", -0.5));
    const json::object answer = json::parse(whole_answer(head(true), {choice, choice}, usage(), true)).as_object();
    CHECK(answer.at("object").as_string() == "chat.completion");
    CHECK(answer.at("id").as_string() == "id-1");
    CHECK(answer.at("created").as_int64() == 1764450000);
    CHECK(answer.at("model").as_string() == "m");
    REQUIRE(answer.at("choices").as_array().size() == 2);
    const json::object& second = answer.at("choices").as_array()[1].as_object();
    CHECK(second.at("index").as_int64() == 1);
    CHECK(second.at("message").at("role").as_string() == "assistant");
    CHECK(second.at("message").at("content").as_string() == "Hello!");
    CHECK(second.at("finish_reason").as_string() == "length");
    const json::object& entry = second.at("logprobs").at("content").as_array()[0].as_object();
    CHECK(entry.at("logprob").as_double() == -0.5);
    CHECK(json::serialize(entry.at("bytes")) == "[195]");
    CHECK(entry.at("top_logprobs").as_array()[0].at("token").as_string() == "other");
    CHECK(answer.at("usage").at("total_tokens").as_int64() == 11);
    CHECK(answer.at("usage").at("prompt_tokens_details").at("cached_tokens").as_int64() == 4);
}

TEST_CASE("a whole completion and its parallel lists") {
    AnswerChoice choice;
    choice.text = "ab";
    choice.logprobs = {logprob("\xC3\xA9", -0.5), logprob("b", -1)};
    const json::object answer = json::parse(whole_answer(head(false), {choice}, usage(), true)).as_object();
    CHECK(answer.at("object").as_string() == "text_completion");
    const json::object& lists = answer.at("choices").as_array()[0].at("logprobs").as_object();
    CHECK(lists.at("tokens").as_array().size() == 2);
    CHECK(lists.at("token_logprobs").as_array().size() == 2);
    CHECK(lists.at("top_logprobs").as_array()[0].at("other").as_int64() == -3);
    CHECK(json::serialize(lists.at("text_offset")) == "[0,1]");
    CHECK(json::parse(whole_answer(head(false), {choice}, usage(), false)).at("choices").as_array()[0].at("logprobs").is_null());
}

TEST_CASE("stream chunks: role, text, finish, usage, error") {
    const json::object role = json::parse(role_chunk(head(true), 0)).as_object();
    CHECK(role.at("object").as_string() == "chat.completion.chunk");
    CHECK(role.at("choices").as_array()[0].at("delta").at("role").as_string() == "assistant");
    CHECK(role.at("choices").as_array()[0].at("finish_reason").is_null());
    Chunk chunk;
    chunk.text = "x\"y";
    const json::object text = json::parse(text_chunk(head(true), 2, chunk, false, 0)).as_object();
    CHECK(text.at("choices").as_array()[0].at("delta").at("content").as_string() == "x\"y");
    CHECK(text.at("choices").as_array()[0].at("index").as_int64() == 2);
    chunk.logprobs.push_back(logprob("x", -1));
    const json::object plain = json::parse(text_chunk(head(false), 0, chunk, true, 7)).as_object();
    CHECK(plain.at("object").as_string() == "text_completion");
    CHECK(plain.at("choices").as_array()[0].at("text").as_string() == "x\"y");
    CHECK(plain.at("choices").as_array()[0].at("logprobs").at("text_offset").as_array()[0].as_int64() == 7);
    const json::object finish = json::parse(finish_chunk(head(true), 0, FinishReason::stop)).as_object();
    CHECK(finish.at("choices").as_array()[0].at("finish_reason").as_string() == "stop");
    const json::object last = json::parse(usage_chunk(head(true), usage())).as_object();
    CHECK(last.at("choices").as_array().empty());
    CHECK(last.at("usage").at("completion_tokens").as_int64() == 2);
    const json::object error = json::parse(stream_error("device_lost", "gone", 503)).as_object();
    CHECK(error.at("error").at("code").as_string() == "device_lost");
}
