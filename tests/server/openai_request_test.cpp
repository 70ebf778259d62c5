// OpenAI bodies: what is taken, what is refused, and with which words.
#include "server/openai_request.h"

#include "catch.h"

using namespace takt;
using namespace takt::server;

namespace {

OpenAiRequest chat(const std::string& fields) {
    return parse_chat_body(R"({"model":"m","messages":[{"role":"user","content":"Hi"}])" +
                               (fields.empty() ? "" : "," + fields) + "}", "m");
}

OpenAiRequest completion(const std::string& fields) { return parse_completion_body("{" + fields + "}", "m"); }

}  // namespace

TEST_CASE("chat: the fields of the API reach the request") {
    const OpenAiRequest parsed = chat(
        R"("max_completion_tokens":5,"temperature":0,"top_p":0.5,"seed":-1,"stop":["x"],"logprobs":true,)"
        R"("top_logprobs":3,"stream":true,"stream_options":{"include_usage":true},"presence_penalty":1,"user":"u",)"
        R"("metadata":{"a":"b"},"store":false,"tools":[{"type":"function"}],"tool_choice":"auto","top_k":4,)"
        R"("ignore_eos":true,"response_format":{"type":"text"},"class":"gold","deadline_ms":9)");
    CHECK(parsed.error.message == "");
    REQUIRE(parsed.requests.size() == 1);
    const Request& request = parsed.requests.front();
    CHECK(request.max_tokens == 5);
    CHECK(request.sampling.seed == 18446744073709551615ull);
    CHECK(request.sampling.logprobs == 3);
    CHECK(request.sampling.top_k == 4);
    CHECK(request.ignore_eos);
    CHECK(request.tools->size() == 1);
    CHECK(request.sla_class == "gold");
    CHECK(request.deadline_ms == 9);
    CHECK(parsed.stream);
    CHECK(parsed.include_usage);
    CHECK(parsed.logprobs);
}

TEST_CASE("chat: n copies with seeds counted up") {
    const OpenAiRequest parsed = chat(R"("n":3,"seed":7)");
    REQUIRE(parsed.requests.size() == 3);
    CHECK(parsed.requests[0].sampling.seed == 7u);
    CHECK(parsed.requests[2].sampling.seed == 9u);
    CHECK_FALSE(chat(R"("n":2)").requests[1].sampling.seed);
    CHECK(chat(R"("n":0)").error.code == errc::bad_request);
    CHECK(chat(R"("n":129)").error.param == "n");
}

TEST_CASE("chat: what is not built says so and never passes silently") {
    for (const char* fields : {R"("response_format":{"type":"json_object"})", R"("response_format":{"type":"json_schema"})",
                               R"("tool_choice":"required")", R"("tool_choice":{"type":"function"})",
                               R"("functions":[])", R"("audio":{})", R"("prediction":{})", R"("modalities":["text","audio"])",
                               R"("tools":[{"type":"function"},{"type":"custom"}])"}) {
        INFO(fields);
        const OpenAiRequest parsed = chat(fields);
        CHECK(parsed.error.code == errc::bad_request);
        CHECK(parsed.error.message.find("not available in this version") != std::string::npos);
        CHECK_FALSE(parsed.error.param.empty());
    }
}

TEST_CASE("chat: bad fields are named in param") {
    const std::pair<const char*, const char*> cases[] = {{R"("temperature":"hot")", "temperature"},
                                                         {R"("top_logprobs":2)", "top_logprobs"},
                                                         {R"("stream_options":{"include_usage":true})", "stream_options"},
                                                         {R"("unheard_of":1)", "unheard_of"},
                                                         {R"("stream":"yes")", "stream"},
                                                         {R"("max_tokens":0)", "max_tokens"},
                                                         {R"("logprobs":5)", "logprobs"}};
    for (const auto& [fields, param] : cases) {
        INFO(fields);
        const OpenAiRequest parsed = chat(fields);
        CHECK(parsed.error.code == errc::bad_request);
        CHECK(parsed.error.param == param);
    }
    CHECK(parse_chat_body("{}", "m").error.param == "messages");
    CHECK(parse_chat_body("[]", "m").error.code == errc::bad_request);
    CHECK(parse_chat_body("", "m").error.code == errc::bad_request);
    CHECK(parse_chat_body("{\"messages\":", "m").error.code == errc::bad_request);
}

TEST_CASE("a wrong model is not found; none is the loaded one") {
    const OpenAiRequest wrong = parse_chat_body(R"({"model":"gpt","messages":[{"role":"user","content":"x"}]})", "m");
    CHECK(wrong.error.code == errc::not_found);
    CHECK(wrong.error.param == "model");
    CHECK_FALSE(parse_chat_body(R"({"messages":[{"role":"user","content":"x"}]})", "m").error);
}

TEST_CASE("chat: what asks for text alone is what there is") {
    CHECK_FALSE(chat(R"("modalities":["text"],"response_format":{"type":"text"})").error);
}

TEST_CASE("tool_choice none keeps the tools from the template") {
    CHECK_FALSE(chat(R"("tools":[{"type":"function"}],"tool_choice":"none")").requests.front().tools);
}

TEST_CASE("completions: every form of prompt") {
    CHECK(completion(R"("prompt":"a")").requests.front().prompt == "a");
    CHECK(completion(R"("prompt":[1,2])").requests.front().tokens == std::vector<std::int32_t>{1, 2});
    const OpenAiRequest several = completion(R"("prompt":["a","b"],"n":2)");
    REQUIRE(several.requests.size() == 4);
    CHECK(several.requests[1].prompt == "a");
    CHECK(several.requests[2].prompt == "b");
    CHECK(completion(R"("prompt":[[1],[2,3]])").requests[1].tokens == std::vector<std::int32_t>{2, 3});
    for (const char* fields : {R"("model":"m")", R"("prompt":[])", R"("prompt":{})", R"("prompt":["a",1])",
                               R"("prompt":[[]])", R"("prompt":[[1],["a"]])", R"("prompt":1)"}) {
        INFO(fields);
        CHECK(completion(fields).error.code == errc::bad_request);
    }
    std::string many = R"("n":128,"prompt":["a","b"])";
    CHECK(completion(many).error.param == "prompt");
    CHECK(completion(R"("prompt":"a","logprobs":2)").requests.front().sampling.logprobs == 2);
    CHECK(completion(R"("prompt":"a","echo":true)").error.message.find("not available") != std::string::npos);
    CHECK(completion(R"("prompt":"a","suffix":"b")").error.message.find("not available") != std::string::npos);
}

TEST_CASE("SLO headers: milliseconds, the body wins, tpot is an envelope") {
    HttpRequest http;
    http.headers = {{"X-SLO-TTFT-ms", "250"}, {"x-slo-tpot-ms", " 12.5 "}};
    Request request;
    CHECK_FALSE(apply_slo_headers(http, request));
    CHECK(request.ttft_ms == 250);
    CHECK(request.itl_ms == 12.5);
    CHECK(request.envelope);
    Request own;
    own.itl_ms = 9;
    CHECK_FALSE(apply_slo_headers(http, own));
    CHECK(own.itl_ms == 9);
    CHECK_FALSE(own.envelope);
    for (const char* value : {"", "abc", "-1", "0", "1e10", "nan", "5ms"}) {
        HttpRequest bad;
        bad.headers = {{"x-slo-ttft-ms", value}};
        INFO(value);
        CHECK(apply_slo_headers(bad, request).param == "x-slo-ttft-ms");
    }
}
