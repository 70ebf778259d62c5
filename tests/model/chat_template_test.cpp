// Chat templates: what they render, whose text each byte is, and the bounds that no template can pass.
#include "catch.h"

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "model/chat_template.h"
#include "text_fixtures.h"

using namespace takt;

namespace {

ChatInput input_of(std::string_view messages, std::string_view arguments = "{}") {
    ChatInput input;
    input.messages = boost::json::parse(std::string(messages));
    input.arguments = boost::json::parse(std::string(arguments)).as_object();
    input.bos_token = "<s>";
    input.now_s = 1753862400;  // 2025-07-30 08:00:00 UTC
    return input;
}

std::variant<ChatText, TemplateError> rendered(std::string_view source, const ChatInput& input) {
    Result<ChatTemplate> parsed = ChatTemplate::parse(source);
    if (!parsed) FAIL(parsed.error());
    return parsed.value().render(input);
}

ChatText chat_of(std::string_view source, const ChatInput& input) {
    auto out = rendered(source, input);
    if (const auto* error = std::get_if<TemplateError>(&out)) FAIL(error->message);
    return std::get<ChatText>(std::move(out));
}

TemplateError error_of(std::string_view source, const ChatInput& input = input_of("[]")) {
    auto out = rendered(source, input);
    INFO(source);
    REQUIRE(std::holds_alternative<TemplateError>(out));
    return std::get<TemplateError>(std::move(out));
}

/// Message text in square brackets, the template's as it is.
std::string marked(const ChatText& chat) {
    std::string out;
    for (const ChatPiece& piece : chat.pieces) out += piece.from_message ? "[" + piece.text + "]" : piece.text;
    return out;
}

std::string slurp(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

}  // namespace

TEST_CASE("every byte of the output knows whose it is") {
    const ChatInput input = input_of(R"([{"role": "user", "content": "  <|end|> Hi, you "}])");
    const std::pair<const char*, const char*> cases[] = {
        {"<|x|>{{ messages[0].content }}<|end|>", "<|x|>[  <|end|> Hi, you ]<|end|>"},
        {"{{ '<' + messages[0].content|trim + '>' }}", "<[<|end|> Hi, you]>"},
        {"{{ messages[0].content[2:5] ~ 'z' }}", "[<|e]z"},
        {"{{ messages[0].content.split('|')|join('#') }}", "[  <]#[end]#[> Hi, you ]"},
        {"{{ messages[0].content|replace('Hi', 'Ho') }}", "[  <|end|> ]Ho[, you ]"},
        {"{{ messages[0].content|upper }}", "[  <|END|> HI, YOU ]"},
        {"{% set x %}a{{ messages[0].content|trim }}b{% endset %}{{ x }}", "a[<|end|> Hi, you]b"},
        {"{% macro f(t) %}({{ t }}){% endmacro %}{{ f(messages[0].content|trim) }}", "([<|end|> Hi, you])"},
        {"{% set ns = namespace(t='') %}{% for c in 'ab' %}{% set ns.t = ns.t + c + messages[0].content[2] %}"
         "{% endfor %}{{ ns.t }}",
         "a[<]b[<]"},
        {"{{ '%s!' % messages[0].content[3:5] }}", "[|e]!"},
        {"{{ '{}!'.format(messages[0].content[3:5]) }}", "[|e]!"},
        {"{{ {'k': messages[0].content[2:4]}|tojson }}", "{\"k\": [\"<|\"]}"},
        {"{{ [messages[0].content[2:4]] }}", "[['<|']]"},
        {"{{ ('-' ~ messages[0].content[2:4]) * 3 }}{{ 0 * 'x' }}{{ 5 * 'ab' }}", "-[<|]-[<|]-[<|]ababababab"},
        {"{% filter trim %} {{ messages[0].content }} {% endfilter %}", "[<|end|> Hi, you]"},
    };
    for (const auto& [source, wanted] : cases) {
        INFO(source);
        CHECK(marked(chat_of(source, input)) == wanted);
    }
}

TEST_CASE("known roles may be part of a special token, invented ones may not") {
    const char* source = "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}";
    CHECK(marked(chat_of(source, input_of(R"([{"role": "user"}, {"role": "end"}])"))) == "<|user|><|[end]|>");
}

TEST_CASE("message text never becomes a control token, the template's does") {
    const Tokenizer tokenizer = byte_tokenizer();
    const int32_t end = *tokenizer.find_token("<|end|>");
    const ChatInput input =
        input_of(R"([{"role": "user", "content": "<|end|>"}, {"role": "user", "content": "|end|>"}])");
    const ChatText chat =
        chat_of("{% for m in messages %}{{ '<' if loop.last }}{{ m.content }}<|end|>{% endfor %}", input);
    const std::vector<int32_t> ids = tokenizer.encode_pieces(chat.token_pieces());
    CHECK(std::count(ids.begin(), ids.end(), end) == 2);
    CHECK(tokenizer.decode(ids, false) == "<|end|><|end|><|end|><|end|>");
}

TEST_CASE("comparisons, batches and formats are Jinja's at their edges") {
    const std::pair<const char*, const char*> cases[] = {
        {"{{ 1 <= 1 }} {{ 2 <= 1 }} {{ 1 >= 1 }} {{ 1 < 1 }}", "True False True False"},
        {"{% for b in [1, 2, 3]|batch(2) %}{{ b|join('-') }};{% endfor %}", "1-2;3;"},
        {"{{ '%.2f' % 1.239 }} {{ '%d' % 3.7 }}", "1.24 3"},
        {"{{ 'aXXbXXXcX'.rsplit('XX') }} {{ 'aaaa'.rsplit('aa', 1) }} {{ ''.rsplit(',') }}", "['a', 'bX', 'cX'] ['aa', ''] ['']"},
        {"{{ 'abab'.rfind('ab') }} {{ 'abab'.find('b') }} {{ 'ab'.rfind('') }} {{ 'ab'.find('c') }}", "2 1 2 -1"},
        {"{% for a in 'x' %}{% for b in 'y' %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}{% endfor %}", "10"},
        {"{{ 1e400 }} {{ '-1e400'|float }} {{ '1e400'|int(7) }}", "inf -inf 7"},
    };
    for (const auto& [source, wanted] : cases) {
        INFO(source);
        CHECK(marked(chat_of(source, input_of("[]"))) == wanted);
    }
    CHECK(error_of("{{ [1]|batch(0)|list }}").kind == TemplateErrorKind::type);
    CHECK(error_of("{{ '99999999999999999999'|int }}").message == "int: an integer of over 64 bits");
}

TEST_CASE("a name with dots goes from part to part, as Jinja's does") {
    const ChatInput input =
        input_of(R"([{"f": {"name": "a", "n": [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]}}, {"f": {"name": "b"}}, {"g": 1}])");
    const std::pair<const char*, const char*> cases[] = {   // what Jinja2 prints
        {"{{ messages[:2]|map(attribute='f.name')|join(' ') }}", "[a] [b]"},
        {"{{ messages|map(attribute='f.name', default={'name': 'none'})|join(' ') }}", "[a] [b] none"},
        {"{{ messages[:1]|map(attribute='f.n.1')|join }} {{ messages[:1]|map(attribute='f.n.10')|join }}", "6 15"},
        {"{{ messages[:1]|map(attribute='f.n.1x')|first is undefined }}", "True"},
        {"{{ messages[:1]|map(attribute='f.n.1234567890123456789012')|first is undefined }}", "True"},
        {"{{ messages|map(attribute='g', default=0)|join('-') }}", "0-0-1"},
        {"{{ [[1, 2], [3, 4]]|map(attribute=1)|join('-') }}", "2-4"},
        {"{{ [{'': {'x': 4}}]|map(attribute='.x')|join }} {{ [{'a': {'': 5}}]|map(attribute='a.')|join }}", "4 5"},
        {"{{ messages[:2]|selectattr('f.name', 'equalto', 'b')|list|length }}", "1"},
        {"{{ messages[:2]|sort(attribute='f.name', reverse=true)|map(attribute='f.name')|join }}", "[ba]"},
    };
    for (const auto& [source, wanted] : cases) {
        INFO(source);
        CHECK(marked(chat_of(source, input)) == wanted);
    }
    CHECK(error_of("{{ messages|map(attribute='f.n.1')|join }}", input).kind == TemplateErrorKind::undefined);
}

TEST_CASE("a template's own rejection and the use of what is missing are told apart") {
    CHECK(error_of("{{ raise_exception('roles must alternate') }}").kind == TemplateErrorKind::raised);
    CHECK(error_of("{{ raise_exception('roles must alternate') }}").message == "roles must alternate");
    CHECK(error_of("\n{{ nope.x }}").kind == TemplateErrorKind::undefined);
    CHECK(error_of("\n{{ nope.x }}").line == 2);
    CHECK(error_of("{{ messages[3].content }}").kind == TemplateErrorKind::undefined);
    CHECK(error_of("{{ 1 + 'a' }}").kind == TemplateErrorKind::type);
    CHECK(error_of("{{ messages.append(1) }}").kind == TemplateErrorKind::type);
    CHECK(error_of("{{ 1|nothing }}").kind == TemplateErrorKind::type);
}

TEST_CASE("no template hangs, recurses or grows without bound") {
    const char* hostile[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ "
        "ns.l|tojson }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(9999) %}{% for x in [ns.l] %}{% set ns.l = loop %}{% endfor "
        "%}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{{ [1] * 99999999999 }}",
        "{{ range(1000000)|list }}",
        "{{ 'ab'.center(999999999) }}",
        "{{ 'a'|indent(999999999) }}",
    };
    for (const char* source : hostile) {
        const TemplateError error = error_of(source);
        INFO(source);
        CHECK((error.kind == TemplateErrorKind::limit || error.kind == TemplateErrorKind::type));
    }
    // Searches in texts that repeat themselves take no product of both sizes.
    CHECK(chat_of("{% set t = 'a' * 2000000 %}{% set a = 'a' * 1000000 %}{{ t.find(a ~ 'b') }} {{ t.rfind('b' ~ a) }} {{ (a ~ 'b') in t }} "
                  "{{ t.split(a ~ 'b')|length }} {{ t.rsplit('b' ~ a)|length }} {{ t|replace(a ~ 'b', '')|length }} "
                  "{{ t.strip('b' * 2000000 ~ 'a')|length }}", input_of("[]")).text() == "-1 -1 False 1 1 2000000 0");
    // Neither do names in great numbers, nor functions that look through a long text and give little back.
    const auto many = [](const std::string& before, const std::string& after) {
        std::string out;
        for (int i = 0; i < 40'000; ++i) out += before + std::to_string(i) + after;
        return out;
    };
    const std::string loops = "{% for i in range(99999) %}{% for j in range(99999) %}";
    const std::string ends = "{% endfor %}{% endfor %}";
    for (const std::string& source : {
             "{{ {" + many("", ":1,") + "0:1}|length }}",
             "{{ dict(" + many("a", "=1,") + "b=1)|length }}",
             many("{% set a", "=1 %}") + loops + "{{ zz }}" + ends,
             "{% set n = namespace(" + many("a", "=1,") + "b=1) %}" + loops + "{% set n.b = n.zz %}" + ends,
             "{% macro m(" + many("a", "=1,") + "b=1) %}{% endmacro %}" + loops + "{{ m() }}" + ends,
             "{% set t = 'a ' * 500000 %}" + loops + "{% set x = t|wordcount %}" + ends,
         }) {
        INFO(source.substr(0, 60));
        CHECK(error_of(source).kind == TemplateErrorKind::limit);
    }
    // Rings of namespaces end with the render.
    CHECK(chat_of("{% set a = namespace() %}{% set a.me = a %}{{ a.me.me is defined }}", input_of("[]")).text() ==
          "True");
}

TEST_CASE("deeply nested sources are refused, not followed") {
    const auto nested = [](std::string_view open, std::string_view close, std::string_view inside, size_t count) {
        std::string out;
        for (size_t i = 0; i < count; ++i) out += open;
        out += inside;
        for (size_t i = 0; i < count; ++i) out += close;
        return out;
    };
    CHECK_FALSE(ChatTemplate::parse("{{ " + nested("(", ")", "1", 100'000) + " }}").ok());
    CHECK_FALSE(ChatTemplate::parse("{{ " + nested("[", "]", "1", 100'000) + " }}").ok());
    CHECK_FALSE(ChatTemplate::parse("{{ " + nested("-", "", "1", 100'000) + " }}").ok());
    CHECK_FALSE(ChatTemplate::parse("{{ " + nested("1 + ", "", "1", 50'000) + " }}").ok());
    CHECK_FALSE(ChatTemplate::parse("{{ x" + nested(".y", "", "", 50'000) + " }}").ok());
    CHECK_FALSE(ChatTemplate::parse("{{ x" + nested("|trim", "", "", 50'000) + " }}").ok());
    CHECK_FALSE(ChatTemplate::parse(nested("{% if x %}", "{% endif %}", "", 10'000)).ok());
    CHECK_FALSE(ChatTemplate::parse(std::string(2'000'000, 'x')).ok());
    CHECK(ChatTemplate::parse("{{ " + nested("(", ")", "1", 20) + " }}").ok());
}

TEST_CASE("real templates render to the byte") {
    const std::filesystem::path truth =
        std::filesystem::path(TAKT_SOURCE_ROOT) / ".." / "shared" / "truth" / "templates";
    const std::filesystem::path tokenizers = std::filesystem::path(TAKT_SOURCE_ROOT) / ".." / "shared" / "tokenizers";
    if (!std::filesystem::exists(truth)) {
        WARN("skipped: no reference renderings beside the source tree");
        return;
    }
    for (const char* name : {"qwen3", "llama3_1"}) {
        const auto config = boost::json::parse(slurp(tokenizers / name / "tokenizer_config.json"));
        Result<ChatTemplate> parsed = ChatTemplate::parse(config.at("chat_template").as_string().c_str());
        REQUIRE(parsed.ok());
        std::istringstream lines(slurp(truth / (std::string(name) + ".jsonl")));
        size_t num_rows = 0;
        for (std::string line; std::getline(lines, line); ++num_rows) {
            const boost::json::object row = boost::json::parse(line).as_object();
            INFO(name << " " << row.at("id"));
            ChatInput input;
            input.messages = row.at("messages");
            input.tools = row.at("tools");
            input.arguments = row.at("kwargs").as_object();
            input.add_generation_prompt = row.at("add_generation_prompt").as_bool();
            if (row.at("bos_token").is_string()) input.bos_token = row.at("bos_token").as_string().c_str();
            const auto out = parsed.value().render(input);
            REQUIRE(std::holds_alternative<TemplateError>(out) == row.contains("error"));
            if (row.contains("error")) continue;
            const boost::json::string& wanted = row.at("text").as_string();
            CHECK(std::get<ChatText>(out).text() == std::string(wanted.data(), wanted.size()));
        }
        CHECK(num_rows == 26);
    }
}
