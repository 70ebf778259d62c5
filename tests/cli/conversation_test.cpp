// The conversation of `takt chat`: what lines and commands do to its messages and settings.
#include "catch.h"
#include "cli/chat/conversation.h"

#include <boost/json/serialize.hpp>

using takt::cli::Conversation;
using Kind = Conversation::Step::Kind;

namespace {

std::string text_of(const Conversation& conversation) { return boost::json::serialize(conversation.messages()); }

}  // namespace

TEST_CASE("lines become messages and answers follow them") {
    Conversation conversation({});
    CHECK(conversation.take_line("Hi").kind == Kind::ask);
    conversation.add_answer("Hello");
    CHECK(conversation.take_line("//etc").kind == Kind::ask);
    CHECK(text_of(conversation) ==
          R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"},{"role":"user","content":"/etc"}])");
    conversation.drop_question();
    CHECK(conversation.messages().size() == 2);
    CHECK(conversation.take_line("  \t").kind == Kind::none);
    CHECK(conversation.messages().size() == 2);
}

TEST_CASE("undo and retry go back a question") {
    Conversation conversation({});
    CHECK(conversation.take_line("/undo").failed);
    CHECK(conversation.take_line("/retry").failed);
    conversation.take_line("one");
    conversation.add_answer("1");
    CHECK(conversation.take_line("/retry").kind == Kind::ask);
    CHECK(text_of(conversation) == R"([{"role":"user","content":"one"}])");
    conversation.add_answer("I");
    CHECK_FALSE(conversation.take_line("/undo").failed);
    CHECK(text_of(conversation) == "[]");
}

TEST_CASE("settings have their bounds, and no argument clears them") {
    Conversation conversation({});
    CHECK_FALSE(conversation.take_line("/temperature 0.5").failed);
    CHECK(conversation.settings().temperature == 0.5);
    for (const char* bad : {"/temperature 101", "/temperature -1", "/temperature x", "/temperature 1x", "/temperature nan", "/max_tokens 0",
                            "/max_tokens 1.5", "/max_tokens 99999999999", "/seed -1", "/none", "/"}) {
        INFO(bad);
        const Conversation::Step step = conversation.take_line(bad);
        CHECK(step.failed);
        CHECK_FALSE(step.text.empty());
        CHECK(step.kind == Kind::none);
    }
    CHECK(conversation.settings().temperature == 0.5);
    conversation.take_line("/temperature");
    CHECK(conversation.settings().temperature == 0.7);
    conversation.take_line("/seed 18446744073709551615");
    CHECK(conversation.settings().seed == ~std::uint64_t{0});
    conversation.take_line("/timings");
    CHECK(conversation.settings().timings);
}

TEST_CASE("a system message stands first and starts anew") {
    Conversation::Settings settings;
    settings.system = "Be brief.";
    Conversation conversation(settings);
    conversation.take_line("Hi");
    CHECK(text_of(conversation) == R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])");
    conversation.take_line("/system \t Be long. ");
    CHECK(text_of(conversation) == R"([{"role":"system","content":"Be long."}])");
    conversation.take_line("/system");
    CHECK(text_of(conversation) == "[]");
    CHECK(conversation.take_line("/exit").kind == Kind::leave);
    CHECK(conversation.take_line("/help").text.find("/retry") != std::string::npos);
}
