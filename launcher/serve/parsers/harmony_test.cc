// gpt-oss' harmony format.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/serve/parsers/output_parser.h"
#include "launcher/serve/parsers/parsed_answer.h"

namespace nvllm::launcher {
namespace {

struct Call {
  std::string name, arguments;
};

// Checks with every way of splitting the text.
void check(const OutputParserOptions& options, const std::string& text,
           const std::string& reasoning, const std::string& content,
           const std::vector<Call>& calls = {}) {
  CAPTURE(text);
  const ParsedAnswer whole = parse_answer(options, text);
  CHECK(whole.reasoning == reasoning);
  CHECK(whole.content == content);
  CHECK(whole.called_tools == !calls.empty());
  REQUIRE(whole.calls.size() == calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CHECK(whole.calls[i].name == calls[i].name);
    CHECK(whole.calls[i].arguments == calls[i].arguments);
    CHECK(whole.calls[i].id.starts_with("call_"));
  }
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    std::size_t pieces = 0;
    const auto size = [&] { return pieces++ == 0 ? cut : text.size(); };
    CHECK(whole.same_as(parse_answer(options, text, size)));
  }
  CHECK(whole.same_as(parse_answer(options, text, [] { return 1; })));
}

const OutputParserOptions kBoth = {.reasoning_parser = "openai_gptoss",
                                   .tool_call_parser = "openai"};
const OutputParserOptions kReasoning = {.reasoning_parser = "openai_gptoss"};

TEST_CASE("harmony: the channel analysis is reasoning, the channel final content") {
  for (const OutputParserOptions& options : {kBoth, kReasoning}) {
    check(options,
          "<|channel|>analysis<|message|>I think.\n<|end|><|start|>assistant<|channel|>final"
          "<|message|> A < B <|and|> more",
          "I think.\n", " A < B <|and|> more");
    check(options, "<|channel|>final<|message|>A", "", "A");
    check(options, "<|channel|>analysis<|message|>cut o", "cut o", "");
    // The prompt had the header.
    check(options, "A", "", "A");
  }
}

TEST_CASE("harmony: a commentary with a recipient is a call") {
  check(kBoth,
        "<|channel|>analysis<|message|>R<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"<b>\"}<|call|>",
        "R", "", {{"get_weather", R"({"city": "<b>"})"}});
  // After the role, without a type, without the prefix.
  check(kBoth,
        "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}<|end|>"
        "<|start|>assistant<|channel|>commentary to=python<|message|>1+1",
        "", "", {{"f", "{}"}, {"python", "1+1"}});
  check(kBoth, "<|channel|>commentary to=functions.f<|message|>", "", "", {{"f", ""}});
  // The prompt had the role.
  check(kBoth, " to=functions.f<|channel|>commentary json<|message|>{\"a\":1}<|call|>", "", "",
        {{"f", "{\"a\":1}"}});
  check(kBoth, "to=functions.f <|constrain|>json<|message|>{}<|call|>", "", "", {{"f", "{}"}});
}

TEST_CASE("harmony: an answer that begins like a recipient, but has no header, is content") {
  for (const char* const text :
       {" to", " to=f", "\n to=functions.f", " to= A", " tomorrow", "  "}) {
    check(kBoth, text, "", text);
  }
  check(kBoth, " to= A<|end|>B", "", " to= AB");
  const std::string long_name = " to=" + std::string(5000, 'x');
  CHECK(parse_answer(kBoth, long_name).content == long_name);
}

TEST_CASE("harmony: a commentary without a recipient is content, before a call as well") {
  check(kBoth,
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.f<|message|>{}",
        "", "I look.", {{"f", "{}"}});
  check(kBoth, "<|channel|>commentary to= <|message|>A", "", "A");
}

TEST_CASE("harmony: without tools a message to a recipient is content") {
  check(kReasoning, "<|channel|>commentary to=functions.f<|message|>{}", "", "{}");
}

TEST_CASE("harmony: the tool call parser alone tells reasoning apart, too") {
  check({.tool_call_parser = "openai"}, "<|channel|>analysis<|message|>R<|end|>", "R", "");
}

TEST_CASE("harmony: headers are no text, however long or broken they are") {
  check(kBoth, "<|channel|>analysis" + std::string(300, 'x'), "", "");
  CHECK(parse_answer(kBoth, "<|channel|>analysis" + std::string(5000, 'x')).content.empty());
  check(kBoth, "<|start|>assistant<|start|>assistant<|channel|><|channel|>final<|message|>A", "",
        "A");
  check(kBoth, "<|message|>A<|end|>B", "", "AB");
  check(kBoth, "<|chan", "", "<|chan");
}

TEST_CASE("harmony: parsers of other formats do not go with it") {
  CHECK_THROWS_WITH_AS(
      make_output_parser({.reasoning_parser = "qwen3", .tool_call_parser = "openai"}),
      "--reasoning-parser qwen3 with --tool-call-parser openai: openai_gptoss and openai go with "
      "each other alone",
      Error);
  CHECK_THROWS_AS(
      make_output_parser({.reasoning_parser = "openai_gptoss", .tool_call_parser = "hermes"}),
      Error);
}

}  // namespace
}  // namespace nvllm::launcher
