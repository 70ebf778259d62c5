// The native protocol's frames: every field with its bounds, malformed input, and what goes back.
#include "server/protocol.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <string>

#include "catch.h"

using namespace takt;
using namespace takt::server;
namespace json = boost::json;

namespace {

GenerateFrame generate(const std::string& fields) {
    ClientFrame frame = parse_client_frame(R"({"type":"generate","id":"a",)" + fields + "}");
    if (auto* error = std::get_if<FrameError>(&frame)) FAIL(fields << ": " << error->message);
    REQUIRE(std::holds_alternative<GenerateFrame>(frame));
    return std::get<GenerateFrame>(std::move(frame));
}

FrameError refused(const std::string& text) {
    ClientFrame frame = parse_client_frame(text);
    INFO(text.substr(0, 200));
    REQUIRE(std::holds_alternative<FrameError>(frame));
    FrameError error = std::get<FrameError>(std::move(frame));
    CHECK(error.code == errc::bad_request);
    CHECK_FALSE(error.message.empty());
    return error;
}

FrameError refused_field(const std::string& fields) {
    FrameError error = refused(R"({"type":"generate","id":"a","prompt":"p",)" + fields + "}");
    CHECK(error.id == "a");
    return error;
}

json::object parsed(const std::string& frame) { return json::parse(frame).as_object(); }

}  // namespace

TEST_CASE("generate: the defaults are the contract's") {
    const GenerateFrame frame = generate(R"("prompt":"Hi")");
    CHECK(frame.id == "a");
    CHECK(frame.request.prompt == "Hi");
    CHECK_FALSE(frame.request.messages);
    CHECK_FALSE(frame.request.tokens);
    CHECK_FALSE(frame.request.max_tokens);
    CHECK(frame.request.sampling.temperature == 1.0);
    CHECK(frame.request.sampling.top_p == 1.0);
    CHECK(frame.request.sampling.top_k == 0);
    CHECK_FALSE(frame.request.sampling.seed);
    CHECK_FALSE(frame.request.sampling.logprobs);
    CHECK_FALSE(frame.credit);
    CHECK_FALSE(frame.echo_tokens);
    CHECK(frame.request.stop.empty());
}

TEST_CASE("generate: every field arrives") {
    const GenerateFrame frame = generate(
        R"("tokens":[1,2,3],"max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,)"
        R"("seed":18446744073709551615,"stop":["a","bc"],"repetition_penalty":1.5,"presence_penalty":-2,)"
        R"("frequency_penalty":2,"logit_bias":{"5":-100,"6":1.5},"logprobs":20,"ignore_eos":true,"parse_special":true,)"
        R"("class":"gold","ttft_ms":100,"itl_ms":10.5,"deadline_ms":5000,"credit":3,"echo_tokens":true)");
    const Request& request = frame.request;
    CHECK(request.tokens == std::vector<std::int32_t>{1, 2, 3});
    CHECK(request.max_tokens == 7);
    CHECK(request.sampling.temperature == 0.5);
    CHECK(request.sampling.top_p == 0.9);
    CHECK(request.sampling.top_k == 40);
    CHECK(request.sampling.min_p == 0.1);
    CHECK(request.sampling.seed == 18446744073709551615ull);
    CHECK(request.stop == std::vector<std::string>{"a", "bc"});
    CHECK(request.sampling.repetition_penalty == 1.5);
    CHECK(request.sampling.presence_penalty == -2);
    CHECK(request.sampling.frequency_penalty == 2);
    CHECK(request.sampling.logit_bias.at(5) == -100);
    CHECK(request.sampling.logit_bias.at(6) == 1.5);
    CHECK(request.sampling.logprobs == 20);
    CHECK(request.ignore_eos);
    CHECK(request.parse_special);
    CHECK(request.sla_class == "gold");
    CHECK(request.ttft_ms == 100);
    CHECK(request.itl_ms == 10.5);
    CHECK(request.deadline_ms == 5000);
    CHECK_FALSE(request.envelope);
    CHECK(frame.credit == 3);
    CHECK(frame.echo_tokens);
    CHECK(request.label == "a");
    CHECK(request.tenant.empty());
    CHECK(request.domain.empty());
}

TEST_CASE("generate: chat messages, tools and template arguments") {
    const GenerateFrame frame = generate(
        R"("messages":[{"role":"system","content":"S"},{"role":"user","content":[{"type":"text","text":"a"},)"
        R"({"type":"text","text":"b"}],"name":"n"},{"role":"assistant","content":null,"tool_calls":[]}],)"
        R"("tools":[{"type":"function"}],"chat_template_kwargs":{"x":1})");
    const json::array& messages = *frame.request.messages;
    REQUIRE(messages.size() == 3);
    CHECK(messages[1].at("content").as_string() == "ab");
    CHECK(messages[1].at("name").as_string() == "n");
    CHECK(messages[2].at("content").as_string() == "");
    CHECK(frame.request.tools->size() == 1);
    CHECK(frame.request.chat_template_kwargs->at("x").as_int64() == 1);
}

TEST_CASE("generate: the edges of every range are in, the next values are out") {
    const char* good[] = {R"("temperature":0)", R"("temperature":100)", R"("top_p":1)", R"("top_p":0.000001)",
                          R"("min_p":0)", R"("min_p":1)", R"("top_k":-1)", R"("top_k":2147483647)", R"("max_tokens":1)",
                          R"("max_tokens":2147483647)", R"("presence_penalty":2)", R"("frequency_penalty":-2)",
                          R"("repetition_penalty":10)", R"("logit_bias":{"0":100})", R"("logit_bias":{})",
                          R"("logprobs":0)", R"("seed":0)", R"("stop":"x")", R"("stop":[])", R"("credit":0)",
                          R"("stop":["1","2","3","4","5","6","7","8"])", R"("max_tokens":5.0)", R"("top_k":null)",
                          R"("deadline_ms":0.001)", R"("ttft_ms":0.001)", R"("itl_ms":1000000000)"};
    for (const char* fields : good) generate(std::string(R"("prompt":"p",)") + fields);
    const char* bad[] = {R"("temperature":-0.1)", R"("temperature":100.1)", R"("temperature":"1")", R"("top_p":0)",
                         R"("top_p":1.01)", R"("min_p":-0.1)", R"("min_p":1.1)", R"("top_k":-2)",
                         R"("top_k":2147483648)", R"("top_k":1.5)", R"("max_tokens":0)", R"("max_tokens":-1)",
                         R"("max_tokens":2147483648)", R"("max_tokens":true)", R"("presence_penalty":2.1)",
                         R"("frequency_penalty":-2.1)", R"("repetition_penalty":0)", R"("repetition_penalty":10.1)",
                         R"("logit_bias":{"0":100.1})", R"("logit_bias":{"-1":0})", R"("logit_bias":{"a":0})",
                         R"("logit_bias":{"":0})", R"("logit_bias":{"2147483648":0})", R"("logit_bias":{"1":"2"})",
                         R"("logit_bias":[1])", R"("logprobs":-1)", R"("logprobs":21)", R"("logprobs":true)",
                         R"("seed":-1)", R"("seed":1.5)", R"("seed":18446744073709551616)", R"("seed":"1")",
                         R"("stop":"")", R"("stop":[""])", R"("stop":[1])", R"("stop":{})",
                         R"("stop":["1","2","3","4","5","6","7","8","9"])", R"("ignore_eos":1)",
                         R"("parse_special":"true")", R"("class":1)", R"("ttft_ms":0)", R"("itl_ms":-1)",
                         R"("deadline_ms":0.0009)", R"("deadline_ms":1e300)", R"("ttft_ms":1000000001)",
                         R"("credit":-1)", R"("credit":1e30)",
                         R"("echo_tokens":0)", R"("tools":[{}])", R"("chat_template_kwargs":{})"};
    for (const char* fields : bad) {
        INFO(fields);
        const FrameError error = refused_field(fields);
        // The message names the field.
        const std::string name = std::string(fields).substr(1, std::string(fields).find('"', 1) - 1);
        CHECK(error.message.find(name) != std::string::npos);
    }
}

TEST_CASE("generate: huge and odd numbers are refused, not wrapped") {
    for (const char* number : {"1e999", "-1e999", "123456789012345678901234567890", "1e19", "-0.5e5"}) {
        refused_field(std::string(R"("max_tokens":)") + number);
        refused_field(std::string(R"("logprobs":)") + number);
    }
    refused_field(R"("temperature":1e999)");
    const FrameError error = refused(R"({"type":"generate","id":"a","tokens":[1,4294967296]})");
    CHECK(error.message.find("tokens") != std::string::npos);
}

TEST_CASE("generate: exactly one kind of input, never an empty one") {
    refused(R"({"type":"generate","id":"a"})");
    refused(R"({"type":"generate","id":"a","prompt":"x","tokens":[1]})");
    refused(R"({"type":"generate","id":"a","prompt":"x","messages":[{"role":"user","content":"x"}]})");
    refused(R"({"type":"generate","id":"a","tokens":[]})");
    refused(R"({"type":"generate","id":"a","tokens":[1.5]})");
    refused(R"({"type":"generate","id":"a","tokens":[-1]})");
    refused(R"({"type":"generate","id":"a","tokens":"1"})");
    refused(R"({"type":"generate","id":"a","prompt":1})");
    refused(R"({"type":"generate","id":"a","messages":[]})");
    refused(R"({"type":"generate","id":"a","messages":{}})");
    refused(R"({"type":"generate","id":"a","messages":[1]})");
    refused(R"({"type":"generate","id":"a","messages":[{"content":"x"}]})");
    refused(R"({"type":"generate","id":"a","messages":[{"role":"","content":"x"}]})");
    refused(R"({"type":"generate","id":"a","messages":[{"role":"user"}]})");
    refused(R"({"type":"generate","id":"a","messages":[{"role":"user","content":5}]})");
    const FrameError image =
        refused(R"({"type":"generate","id":"a","messages":[{"role":"user","content":[{"type":"image_url"}]}]})");
    CHECK(image.message.find("not available in this version") != std::string::npos);
}

TEST_CASE("ids: 1 to 64 characters, counted as characters") {
    std::string wide;
    for (int i = 0; i < 64; ++i) wide += "\xC3\xA9";
    ClientFrame frame = parse_client_frame(R"({"type":"cancel","id":")" + wide + "\"}");
    REQUIRE(std::holds_alternative<CancelFrame>(frame));
    CHECK(std::get<CancelFrame>(frame).id == wide);
    CHECK_FALSE(refused(R"({"type":"cancel","id":")" + wide + "x\"}").id);
    CHECK_FALSE(refused(R"({"type":"cancel","id":""})").id);
    CHECK_FALSE(refused(R"({"type":"cancel","id":7})").id);
    CHECK_FALSE(refused(R"({"type":"cancel","id":null})").id);
    CHECK_FALSE(refused(R"({"type":"cancel"})").id);
}

TEST_CASE("credit and cancel frames") {
    const ClientFrame frame = parse_client_frame(R"({"type":"credit","id":"x","tokens":12})");
    REQUIRE(std::holds_alternative<CreditFrame>(frame));
    CHECK(std::get<CreditFrame>(frame).tokens == 12);
    refused(R"({"type":"credit","id":"x"})");
    refused(R"({"type":"credit","id":"x","tokens":-1})");
    refused(R"({"type":"credit","id":"x","tokens":"5"})");
    refused(R"({"type":"credit","id":"x","tokens":1,"more":2})");
    CHECK(refused(R"({"type":"cancel","id":"x","why":1})").id == "x");
}

TEST_CASE("frames that are none: the message says so and nothing is taken") {
    for (const char* text : {"", " ", "null", "[]", "\"x\"", "1", "{", "{}", "{\"type\":1}", "{\"type\":null}",
                             "{\"type\":\"generat\",\"id\":\"a\"}", "{\"type\":\"generate\"", "not json",
                             "{\"type\":\"cancel\",\"id\":\"a\"} x", "{'type':'cancel'}", "\xFF\xFE", "{\"a\":\"\xC3\"}",
                             "{\"type\":\"cancel\",\"id\":\"\\ud800\"}", "{\"type\":\"cancel\",\"id\":\"a\",}"}) {
        refused(text);
    }
    refused(std::string("{\"type\":\"cancel\",\"id\":\"a\0\"}", 27));
    CHECK(refused(R"({"type":"nope","id":"q"})").id == "q");
    CHECK(refused(R"({"type":"generate","id":"q","prompt":"x","tenant":"other"})").message.find("tenant") != std::string::npos);
    CHECK(refused(R"({"type":"generate","id":"q","prompt":"x","domain":"other"})").id == "q");
}

TEST_CASE("nesting a thousand levels deep is refused") {
    for (const char* open : {"[", "{\"a\":"}) {
        std::string deep;
        for (int i = 0; i < 1000; ++i) deep += open;
        CHECK(refused(deep).message.find("64") != std::string::npos);
        refused(R"({"type":"generate","id":"a","prompt":"x","chat_template_kwargs":)" + deep);
    }
}

TEST_CASE("accepted, done and error frames hold what the contract lists") {
    const json::object accepted = parsed(accepted_frame("i\"d", 5, 2));
    CHECK(accepted.at("type").as_string() == "accepted");
    CHECK(accepted.at("id").as_string() == "i\"d");
    CHECK(accepted.at("prompt_tokens").as_int64() == 5);
    CHECK(accepted.at("cached_tokens").as_int64() == 2);

    RequestResult result;
    result.reason = FinishReason::length;
    result.usage = {7, 8, 3};
    result.timings.itl_max_ms = 2.5;
    result.timings.preemptions = 4;
    result.seed = 18446744073709551615ull;
    const json::object done = parsed(done_frame("x", result));
    CHECK(done.at("reason").as_string() == "length");
    CHECK(done.at("usage").at("prompt_tokens").as_int64() == 7);
    CHECK(done.at("usage").at("completion_tokens").as_int64() == 8);
    CHECK(done.at("usage").at("cached_tokens").as_int64() == 3);
    for (const char* name : {"queue_ms", "ttft_ms", "prefill_ms", "decode_ms", "itl_p50_ms"}) {
        CHECK(done.at("timings").as_object().contains(name));
    }
    CHECK(done.at("timings").at("itl_max_ms").as_double() == 2.5);
    CHECK(done.at("timings").at("preemptions").as_int64() == 4);
    CHECK(done.at("seed").as_uint64() == 18446744073709551615ull);

    FrameError error;
    error.ref = "live";
    error.code = errc::duplicate_id;
    error.message = "a \"quoted\" message";
    const json::object refused_frame = parsed(error_frame(error));
    CHECK(refused_frame.at("id").is_null());
    CHECK(refused_frame.at("ref").as_string() == "live");
    CHECK(refused_frame.at("code").as_string() == "duplicate_id");
    CHECK(refused_frame.at("message").as_string() == "a \"quoted\" message");
    CHECK_FALSE(refused_frame.contains("retry_after_ms"));
    error.retry_after_ms = 250;
    CHECK(parsed(error_frame(error)).at("retry_after_ms").to_number<double>() == 250);
}

TEST_CASE("delta frames: text always valid, tokens and logprobs only where asked") {
    Chunk chunk;
    chunk.index = 9;
    chunk.text = "a\xF0\x9F\x98\x80\n\"\x01";
    chunk.tokens = {4, 5};
    json::object delta = parsed(delta_frame("x", chunk, false));
    CHECK(delta.at("index").as_int64() == 9);
    CHECK(delta.at("text").as_string() == chunk.text);
    CHECK_FALSE(delta.contains("tokens"));
    CHECK_FALSE(delta.contains("logprobs"));
    TokenLogprob entry;
    entry.token = 4;
    entry.text = "\xF0\x9F";   // half a character
    entry.logprob = -1.25;
    entry.top.push_back({6, "b", -0.5});
    chunk.logprobs.push_back(entry);
    delta = parsed(delta_frame("x", chunk, true));
    CHECK(json::serialize(delta.at("tokens")) == "[4,5]");
    const json::object& first = delta.at("logprobs").as_array().at(0).as_object();
    CHECK(first.at("text").as_string() == "\xEF\xBF\xBD\xEF\xBF\xBD");
    CHECK(first.at("logprob").as_double() == -1.25);
    CHECK(first.at("top").as_array().at(0).at("token").as_int64() == 6);
}

TEST_CASE("a delta written where another one stood is the frame itself") {
    Chunk chunk;
    chunk.index = 7;
    chunk.text = "a \"quoted\" word";
    chunk.tokens = {1, 2};
    const std::string head = delta_head("i\"d");
    std::string out;
    for (const bool echo : {true, false}) {     // the second one is the shorter
        write_delta(out, head, chunk, echo);
        CHECK(out == delta_frame("i\"d", chunk, echo));
    }
    CHECK(out == R"({"type":"delta","id":"i\"d","index":7,"text":"a \"quoted\" word"})");
}
