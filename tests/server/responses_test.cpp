// The Responses dialect: bodies, the event sequence, conversations of a connection.
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "catch.h"
#include "server/response_events.h"
#include "server/response_request.h"

using namespace takt;
using namespace takt::server;
namespace json = boost::json;

namespace {

ResponseRequest body(const std::string& fields, bool frame = false) {
    return parse_response_body(json::parse("{" + fields + "}").as_object(), "m", frame);
}

ResponseHead head() {
    ResponseHead out;
    out.id = "resp_1";
    out.item_id = "msg_1";
    out.model = "m";
    out.created = 5;
    out.echo["temperature"] = 0.5;
    out.stream_id = "lane";
    out.has_stream_id = true;
    return out;
}

Chunk chunk(const std::string& text) {
    Chunk out;
    out.text = text;
    return out;
}

}  // namespace

TEST_CASE("input: a string, messages, parts, function calls and their outputs") {
    const ResponseRequest simple = body(R"("input":"Hi","model":"m","instructions":"Be brief","max_output_tokens":5)");
    CHECK(simple.error.message == "");
    ResponseRequest with_turns = simple;
    prepend_turns(with_turns, json::array());
    REQUIRE(with_turns.request.messages->size() == 2);
    CHECK(with_turns.request.messages->at(0).at("role").as_string() == "system");
    CHECK(with_turns.request.messages->at(1).at("content").as_string() == "Hi");
    CHECK(simple.request.max_tokens == 5);
    CHECK(simple.echo.at("max_output_tokens").as_int64() == 5);
    const ResponseRequest items = body(
        R"("input":[{"role":"developer","content":"D"},{"type":"message","role":"user","content":[{"type":"input_text","text":"a"}]},)"
        R"({"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},)"
        R"({"type":"function_call_output","call_id":"c1","output":"42"}])");
    REQUIRE(items.input.size() == 4);
    CHECK(items.input[0].at("role").as_string() == "system");
    CHECK(items.input[1].at("content").as_string() == "a");
    CHECK(items.input[2].at("tool_calls").as_array()[0].at("function").at("name").as_string() == "f");
    CHECK(items.input[3].at("role").as_string() == "tool");
    CHECK(items.input[3].at("content").as_string() == "42");
}

TEST_CASE("bodies that are refused name the field") {
    const std::pair<const char*, const char*> cases[] = {
        {R"("model":"m")", "input"},
        {R"("input":[])", "input"},
        {R"("input":5)", "input"},
        {R"("input":[{"type":"item_reference","id":"x"}])", "input"},
        {R"("input":"a","background":true)", "background"},
        {R"("input":"a","text":{"format":{"type":"json_schema"}})", "text"},
        {R"("input":"a","tool_choice":"required")", "tool_choice"},
        {R"("input":"a","tools":[{"type":"web_search"}])", "tools"},
        {R"("input":"a","truncation":"auto")", "truncation"},
        {R"("input":"a","parallel_tool_calls":"no")", "parallel_tool_calls"},
        {R"("input":"a","stream_id":"x")", "stream_id"},
        {R"("input":"a","unknown":1)", "unknown"},
        {R"("input":"a","temperature":-1)", "temperature"}};
    for (const auto& [fields, param] : cases) {
        INFO(fields);
        CHECK(body(fields).error.param == param);
    }
    CHECK(body(R"("input":"a","model":"other")").error.code == errc::not_found);
    CHECK(body(R"("type":"response.create","stream_id":"x","generate":false,"input":"a")", true).error.message == "");
}

TEST_CASE("an empty list of items is told as one, and parallel_tool_calls is said again") {
    CHECK(body(R"("input":[])").error.message == "input: found an empty list, allowed one item or more");
    CHECK(body(R"("input":"a","parallel_tool_calls":false)").echo.at("parallel_tool_calls") == false);
    CHECK_FALSE(body(R"("input":"a")").echo.contains("parallel_tool_calls"));
}

TEST_CASE("tools become the nested form that templates know") {
    const ResponseRequest parsed = body(R"("input":"a","tools":[{"type":"function","name":"f","parameters":{}}])");
    const json::object& tool = parsed.request.tools->at(0).as_object();
    CHECK(tool.at("type").as_string() == "function");
    CHECK(tool.at("function").at("name").as_string() == "f");
    CHECK_FALSE(tool.at("function").as_object().contains("type"));
    CHECK(parsed.echo.at("tools").as_array().size() == 1);
}

TEST_CASE("the event sequence: order, numbers, lane, ids") {
    ResponseEvents sequence(head());
    std::vector<ResponseEvent> events = sequence.begin();
    events.push_back(sequence.delta(chunk("Hel")));
    events.push_back(sequence.delta(chunk("lo!")));
    RequestResult result;
    result.usage.prompt_tokens = 9;
    result.usage.completion_tokens = 2;
    for (ResponseEvent& event : sequence.end(result, 6)) events.push_back(std::move(event));
    const std::vector<std::string> names = {
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed"};
    REQUIRE(events.size() == names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
        const json::object data = json::parse(events[i].data).as_object();
        CHECK(events[i].name == names[i]);
        CHECK(data.at("type").as_string() == names[i]);
        CHECK(data.at("sequence_number").as_int64() == static_cast<std::int64_t>(i));
        CHECK(data.at("stream_id").as_string() == "lane");
    }
    const json::object created = json::parse(events[0].data).at("response").as_object();
    for (const char* name : {"id", "object", "created_at", "model", "output", "parallel_tool_calls", "tool_choice", "tools"}) {
        CHECK(created.contains(name));
    }
    CHECK(created.at("status").as_string() == "in_progress");
    CHECK(created.at("temperature").as_double() == 0.5);
    CHECK(json::parse(events[4].data).at("delta").as_string() == "Hel");
    CHECK(json::parse(events[4].data).at("logprobs").as_array().empty());
    CHECK(json::parse(events[6].data).at("text").as_string() == "Hello!");
    const json::object completed = json::parse(events.back().data).at("response").as_object();
    CHECK(completed.at("status").as_string() == "completed");
    CHECK(completed.at("output").as_array()[0].at("content").as_array()[0].at("text").as_string() == "Hello!");
    CHECK(completed.at("usage").at("total_tokens").as_int64() == 11);
    CHECK(completed.at("usage").at("input_tokens_details").as_object().contains("cache_write_tokens"));
    CHECK(completed.at("usage").at("output_tokens_details").at("reasoning_tokens").as_int64() == 0);
}

TEST_CASE("reaching the limit ends as incomplete, a failure as failed") {
    ResponseEvents sequence(head());
    sequence.begin();
    RequestResult result;
    result.reason = FinishReason::length;
    const std::vector<ResponseEvent> end = sequence.end(result, 6);
    CHECK(end.back().name == "response.incomplete");
    const json::object response = json::parse(end.back().data).at("response").as_object();
    CHECK(response.at("incomplete_details").at("reason").as_string() == "max_output_tokens");
    ResponseEvents failing(head());
    failing.begin();
    const json::object failed = json::parse(failing.failed("device_lost", "gone").data).at("response").as_object();
    CHECK(failed.at("status").as_string() == "failed");
    CHECK(failed.at("error").at("code").as_string() == "server_error");
    for (const auto& [code, shown] : {std::pair("bad_request", "invalid_prompt"), std::pair("context_too_long", "invalid_prompt"),
                                      std::pair("queue_full", "rate_limit_exceeded"), std::pair("rate_limited", "rate_limit_exceeded")}) {
        ResponseEvents other(head());
        other.begin();
        CHECK(json::parse(other.failed(code, "m").data).at("response").at("error").at("code").as_string() == shown);
    }
    const std::string lane = "l";
    const json::object error = json::parse(response_error_frame(404, "not_found", "m", "model", &lane)).as_object();
    CHECK(error.at("error").at("param").as_string() == "model");
    CHECK(error.at("stream_id").as_string() == "l");
    CHECK_FALSE(json::parse(response_error_frame(400, "bad_request", "m", "", nullptr)).as_object().contains("stream_id"));
}

TEST_CASE("conversations: chains, branches, unknown ids, a bound") {
    const auto user = [](const char* text) {
        json::array out;
        out.push_back(json::object({{"role", "user"}, {"content", text}}));
        return out;
    };
    Conversations kept;
    CHECK_FALSE(kept.find("r1"));
    kept.add("r1", std::nullopt, user("one"), std::string("A"));
    kept.add("r2", std::string("r1"), user("two"), std::string("B"));
    kept.add("r3", std::string("r1"), user("three"), std::nullopt);
    const json::array chain = *kept.find("r2");
    REQUIRE(chain.size() == 4);
    CHECK(chain[0].at("content").as_string() == "one");
    CHECK(chain[3].at("content").as_string() == "B");
    CHECK(kept.find("r3")->size() == 3);
    for (int i = 0; i < 300; ++i) kept.add("x" + std::to_string(i), std::nullopt, user("x"), std::nullopt);
    CHECK_FALSE(kept.find("r1"));
    CHECK(kept.find("x299"));
    // So is one whose text grows without end, and nothing of it is held then.
    const std::string megabyte(1 << 20, 'm');
    for (int i = 0; i < 40; ++i) {
        const std::string id = "m" + std::to_string(i);
        kept.add(id, i > 0 ? std::optional("m" + std::to_string(i - 1)) : std::nullopt, user(megabyte.c_str()), std::nullopt);
        if (i == 10) CHECK(kept.find(id)->size() == 11);
    }
    kept.add("n", std::nullopt, user("x"), std::nullopt);
    int found = 0;
    for (int i = 0; i < 40; ++i) found += kept.find("m" + std::to_string(i)) ? 1 : 0;
    CHECK(found < 16);
    CHECK(kept.find("n"));
    kept.add("x299", std::nullopt, user("x"), std::nullopt);
    // A chain without end is cut off before its destructors could recurse too deep.
    std::string last = "x299";
    for (int i = 0; i < 2000; ++i) {
        const std::string next = "y" + std::to_string(i);
        kept.add(next, last, user("y"), std::nullopt);
        last = next;
    }
    CHECK_FALSE(kept.find(last));
}
