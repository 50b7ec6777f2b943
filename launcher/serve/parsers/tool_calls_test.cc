#include <doctest/doctest.h>

#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/serve/parsers/output_parser.h"
#include "launcher/serve/parsers/parsed_answer.h"
#include "testing/sanitizers.h"

namespace nvllm::launcher {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;  // name, arguments

// Checks an answer in one piece, and that cutting it changes nothing.
ParsedAnswer check(const std::string& parser, const std::string& text, const std::string& content,
                   const Calls& calls) {
  CAPTURE(parser);
  CAPTURE(text);
  const OutputParserOptions options = {.tool_call_parser = parser, .seed = 5};
  const ParsedAnswer whole = parse_answer(options, text);
  CHECK(whole.content == content);
  Calls found;
  for (const ParsedAnswer::Call& call : whole.calls) found.emplace_back(call.name, call.arguments);
  CHECK(found == calls);
  CHECK(whole.called_tools == !calls.empty());
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    std::size_t pieces = 0;
    const auto size = [&] { return pieces++ == 0 ? cut : text.size(); };
    CHECK(whole.same_as(parse_answer(options, text, size)));
  }
  std::minstd_rand random(1);
  for (int i = 0; i < 20; ++i) {
    CHECK(whole.same_as(parse_answer(options, text, [&] { return 1 + random() % 8; })));
  }
  CHECK(whole.same_as(parse_answer(options, text, [] { return 1; })));
  return whole;
}

void check_content(const std::string& parser, const std::string& text) {
  check(parser, text, text, {});
}

}  // namespace

TEST_CASE("hermes: calls between tags, text before them") {
  check("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "",
        {{"f", "{\"a\": 1}"}});
  check("hermes",
        "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n"
        "{\"name\": \"g\", \"arguments\": {\"b\": [{}, \"}\\\"]\"]}}\n</tool_call>\n",
        "I look.\n", {{"f", "{}"}, {"g", "{\"b\": [{}, \"}\\\"]\"]}"}});
}

TEST_CASE("arguments are sent as the model wrote them") {
  const std::string arguments = "{ \"a\" :1.0,\"b\": \"\\u00e9 \xC3\xA9 \\\\\", \"c\":[ ] }";
  check("hermes", "<tool_call>{\"name\":\"f\",\"arguments\":" + arguments + "}</tool_call>", "",
        {{"f", arguments}});
}

TEST_CASE("a call's keys may come in any order, with others beside them") {
  check("hermes", R"(<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>)", "",
        {{"f", R"({"a": 1})"}});
  check("hermes",
        R"(<tool_call>{"why": [1, "}"], "n": 5 , "name": "f", "arguments": {}, "x": {"y": 1}})"
        "</tool_call>",
        "", {{"f", "{}"}});
  check("llama3_json", R"({"type": "function", "name": "f", "parameters": {"name": "g"}})", "",
        {{"f", R"({"name": "g"})"}});
}

TEST_CASE("a name is unescaped") {
  check("hermes", R"(<tool_call>{"name": "f\u00e9\"", "arguments": {}}</tool_call>)", "",
        {{"f\xC3\xA9\"", "{}"}});
}

TEST_CASE("hermes: a call without arguments has none") {
  check("hermes", R"(<tool_call>{"name": "now"}</tool_call>)", "", {{"now", "{}"}});
}

TEST_CASE("hermes: what is no call is content") {
  check_content("hermes", "A < B, <tool_cal, </tool_call>, <tool_call");
  check_content("hermes", "<tool_call>f(1)</tool_call> B");
  check_content("hermes", R"(<tool_call>{"arguments": {}}</tool_call>)");
  check_content("hermes", R"(<tool_call>{"name": 5, "arguments": {}}</tool_call>)");
  check_content("hermes", R"(<tool_call>{"name": "", "arguments": {}}</tool_call>)");
  check_content("hermes", R"(<tool_call>{"name": "\x", "arguments": {}}</tool_call>)");
  check_content("hermes", R"(<tool_call>{"name": "f", "arguments": [1]}</tool_call>)");
  check_content("hermes", R"(<tool_call>{"name": "f", "argum)");
  check_content("hermes", " \n<tool_call>\n");
  check_content("hermes", " \n");
}

TEST_CASE("hermes: a call is found after one that was none") {
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  check("hermes", "<tool_call>" + call, "<tool_call>", {{"f", "{}"}});
  check("hermes", "<tool_call>{\"name\": \"f\n</tool_call>" + call,
        "<tool_call>{\"name\": \"f\n</tool_call>", {{"f", "{}"}});
  check("hermes", "<" + call, "<", {{"f", "{}"}});
}

TEST_CASE("hermes: a call that ends early is sent as far as it goes") {
  check("hermes", R"(<tool_call>{"name": "f", "arguments": {"a": "b)", "", {{"f", R"({"a": "b)"}});
  check("hermes", R"(<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>B)", "B",
        {{"f", R"({"a": 1})"}});
  check("hermes", R"(<tool_call>{"name": "f", "arguments": {"a": </tool_call>B)", "B",
        {{"f", R"({"a": )"}});
  check("hermes",
        R"(<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "g", "arguments": {}})", "",
        {{"f", "{}"}, {"g", "{}"}});
}

TEST_CASE("hermes: text after calls is content, white space between them is not") {
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  check("hermes", "\n\n" + call + "\n\n" + call + "\n", "", {{"f", "{}"}, {"f", "{}"}});
  check("hermes", call + "\nDone. \n" + call, "\nDone. \n", {{"f", "{}"}, {"f", "{}"}});
}

TEST_CASE("hermes: a tag in a string of the arguments is text") {
  check("hermes", R"(<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>)", "",
        {{"f", R"({"a": "</tool_call>"})"}});
}

TEST_CASE("llama3_json: calls at the beginning, or after the tag") {
  check("llama3_json", R"({"name": "f", "parameters": {"a": 1}})", "", {{"f", R"({"a": 1})"}});
  check("llama3_json", R"({"name": "f", "arguments": {}})", "", {{"f", "{}"}});
  check("llama3_json", "\n\n<|python_tag|>{\"name\": \"f\", \"parameters\": {}}\n", "",
        {{"f", "{}"}});
  check("llama3_json", R"(I look. <|python_tag|>{"name": "f", "parameters": {}})", "I look. ",
        {{"f", "{}"}});
  check("llama3_json", R"({"name": "f", "parameters": {}}; {"name": "g", "parameters": {}};)", "",
        {{"f", "{}"}, {"g", "{}"}});
}

TEST_CASE("llama3_json: what is no call is content") {
  check_content("llama3_json", "Hello {\"name\": \"f\", \"parameters\": {}}");
  check_content("llama3_json", "\n{");
  check_content("llama3_json", R"({"name": "Bob"})");
  check_content("llama3_json", R"({"name": "Bob", "age": 5})");
  check_content("llama3_json", R"({"name": "f", "parameters": 5})");
  check_content("llama3_json", R"({"title": {"name": "f", "parameters": {}}})");
  check_content("llama3_json", "<|python_tag|>print(1)");
  check_content("llama3_json", "; {\"name\": \"f\", \"parameters\": {}}");
  check_content("llama3_json", "<|python_tag");
  check("llama3_json", R"({"name": "f", "parameters": {}}; then B)", "; then B", {{"f", "{}"}});
}

TEST_CASE("llama3_json: an answer that is another object is not held back") {
  const auto parser = make_output_parser({.tool_call_parser = "llama3_json"});
  CHECK(parser->push(R"({"title")").content == R"({"title")");
}

TEST_CASE("mistral: a list of calls") {
  check("mistral", R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}])", "",
        {{"f", R"({"a": 1})"}});
  check("mistral",
        R"(I look.[TOOL_CALLS][{"name": "f", "arguments": {}} , {"arguments": {}, "name": "g"}] B)",
        "I look. B", {{"f", "{}"}, {"g", "{}"}});
  check("mistral", R"([TOOL_CALLS]{"name": "f", "arguments": {}})", "", {{"f", "{}"}});
}

TEST_CASE("mistral: names before their arguments") {
  check("mistral", R"([TOOL_CALLS]f{"a": "}"})", "", {{"f", R"({"a": "}"})"}});
  check("mistral", R"(I look.[TOOL_CALLS]get-x[ARGS]{"a": [1]}[TOOL_CALLS]g.h{} B)", "I look. B",
        {{"get-x", R"({"a": [1]})"}, {"g.h", "{}"}});
  const ParsedAnswer answer =
      check("mistral", "[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{}", "", {{"f", "{}"}});
  CHECK(answer.calls.at(0).id == "abcDEF123");
}

TEST_CASE("mistral: what is no call is content") {
  check_content("mistral", "[TOOL_CALL][TOOL_CALLS");
  check_content("mistral", "[TOOL_CALLS][]");
  check_content("mistral", "[TOOL_CALLS][");
  check_content("mistral", "[TOOL_CALLS]hello world {}");
  check_content("mistral", "[TOOL_CALLS]f[ARGS]5");
  check_content("mistral", "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}");
  check_content("mistral", "[TOOL_CALLS]f[");
  check("mistral", "[TOOL_CALLS]f[TOOL_CALLS]g{}", "[TOOL_CALLS]f", {{"g", "{}"}});
  check("mistral", R"([TOOL_CALLS][{"name": "f", "arguments": {}}, 5])", ", 5]", {{"f", "{}"}});
}

TEST_CASE("mistral: a list that ends early is sent as far as it goes") {
  check("mistral", R"([TOOL_CALLS][{"name": "f", "arguments": {}}, )", "", {{"f", "{}"}});
  check("mistral", R"([TOOL_CALLS][{"name": "f", "arguments": {"a)", "", {{"f", R"({"a)"}});
}

TEST_CASE("a call's name comes before its arguments, which come without waiting") {
  const auto parser = make_output_parser({.tool_call_parser = "hermes"});
  CHECK(parser->push(R"(<tool_call>{"name": "f")").empty());
  OutputDelta delta = parser->push(R"(, "arguments": {"a)");
  REQUIRE(delta.tool_calls.size() == 1);
  CHECK(delta.tool_calls[0].name == "f");
  CHECK(delta.tool_calls[0].arguments == R"({"a)");
  delta = parser->push(R"(b": 1)");
  REQUIRE(delta.tool_calls.size() == 1);
  CHECK(delta.tool_calls[0].name == "");
  CHECK(delta.tool_calls[0].id == "");
  CHECK(delta.tool_calls[0].arguments == R"(b": 1)");
  CHECK(parser->called_tools());
}

TEST_CASE("ids of calls differ, and follow from the seed") {
  const std::string text = R"([TOOL_CALLS]f{}[TOOL_CALLS]f{})";
  std::set<std::string> ids;
  for (const std::uint64_t seed : {1, 2, 1}) {
    for (const auto& call :
         parse_answer({.tool_call_parser = "mistral", .seed = seed}, text).calls) {
      CHECK(call.id.size() == 9);
      CHECK(call.id.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwx"
                                      "yz") == std::string::npos);
      ids.insert(call.id);
    }
  }
  CHECK(ids.size() == 4);
  const ParsedAnswer answer =
      parse_answer({.tool_call_parser = "llama3_json"}, R"({"name": "f", "parameters": {}})");
  CHECK(answer.calls.at(0).id.starts_with("call_"));
  CHECK(answer.calls.at(0).id.size() == 29);
}

TEST_CASE("a long answer takes linear time, whatever it repeats") {
  for (const char* unit :
       {"<tool_call>", "<tool_call>{\"", "<", "\n", "[TOOL_CALLS]a[", "{\"a\":"}) {
    std::string text;
    while (text.size() < (testing::kSanitized ? 100'000 : 1'000'000)) text += unit;
    for (const std::string& parser : tool_call_parser_names()) {
      const ParsedAnswer answer = parse_answer({.tool_call_parser = parser}, text);
      CHECK(answer.content == text);
    }
  }
}

}  // namespace nvllm::launcher
