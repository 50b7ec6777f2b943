#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "launcher/serve/parsers/output_parser.h"
#include "launcher/serve/parsers/parsed_answer.h"
#include "tokenizer/loading/tokenizer_json.h"

namespace nvllm::launcher {
namespace {

struct Case {
  std::string parser;
  bool thinking;
  std::string text, reasoning, content;
};

OutputParserOptions options_of(const std::string& parser, bool thinking) {
  return {.reasoning_parser = parser, .thinking = thinking};
}

void check(const Case& expected) {
  CAPTURE(expected.parser);
  CAPTURE(expected.text);
  const OutputParserOptions options = options_of(expected.parser, expected.thinking);
  const ParsedAnswer whole = parse_answer(options, expected.text);
  CHECK(whole.reasoning == expected.reasoning);
  CHECK(whole.content == expected.content);
  for (std::size_t cut = 1; cut < expected.text.size(); ++cut) {
    std::size_t pieces = 0;
    const auto size = [&] { return pieces++ == 0 ? cut : expected.text.size(); };
    CHECK(whole.same_as(parse_answer(options, expected.text, size)));
  }
  CHECK(whole.same_as(parse_answer(options, expected.text, [] { return 1; })));
}

}  // namespace

TEST_CASE("without a parser all text is content") {
  check({"", false, "<think>A</think>B<tool_call>", "", "<think>A</think>B<tool_call>"});
}

TEST_CASE("qwen3: reasoning stands between its tags, white space included") {
  check({"qwen3", false, "<think>\nA\n</think>\n\nB", "\nA\n", "\n\nB"});
  check({"qwen3", false, "\n<think>A</think>B", "A", "B"});
  check({"qwen3", false, "<think>\n\n</think>\n\nB", "\n\n", "\n\nB"});
}

TEST_CASE("qwen3: an answer that does not begin with a tag is content") {
  check({"qwen3", false, "B", "", "B"});
  check({"qwen3", false, "", "", ""});
  check({"qwen3", false, " \n", "", " \n"});
  check({"qwen3", false, " \nB <think>A</think>", "", " \nB <think>A</think>"});
  check({"qwen3", false, "<thing> <think>", "", "<thing> <think>"});
  check({"qwen3", false, "</think>B", "", "</think>B"});
}

TEST_CASE("qwen3: after a prompt that ended inside <think> the answer begins with reasoning") {
  check({"qwen3", true, "A\n</think>\n\nB", "A\n", "\n\nB"});
  check({"qwen3", true, "</think>B", "", "B"});
  check({"qwen3", true, "<think>A</think>B", "A", "B"});
}

TEST_CASE("deepseek_r1: the answer begins with reasoning, with <think> or without") {
  check({"deepseek_r1", false, "A</think>B", "A", "B"});
  check({"deepseek_r1", false, "<think>A</think>B", "A", "B"});
  check({"deepseek_r1", false, "\nA</think>B", "\nA", "B"});
}

TEST_CASE("an answer that ends early is reasoning up to its end") {
  check({"deepseek_r1", false, "A</thin", "A</thin", ""});
  check({"qwen3", false, "<think>A", "A", ""});
  check({"qwen3", true, " ", " ", ""});
  check({"qwen3", false, "<thin", "", "<thin"});
}

TEST_CASE("there is one block of reasoning") {
  check({"qwen3", false, "<think>A<think></think>B</think><think>C", "A<think>",
         "B</think><think>C"});
}

TEST_CASE("reasoning and content come without waiting") {
  const auto parser = make_output_parser(options_of("deepseek_r1", false));
  CHECK(parser->push("A").reasoning == "A");
  CHECK(parser->push("</thi").empty());
  CHECK(parser->push("nk>B").content == "B");
  CHECK(parser->push("<").content == "<");
}

TEST_CASE("tool calls are looked for in content, not in reasoning") {
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  const ParsedAnswer answer =
      parse_answer({.reasoning_parser = "qwen3", .tool_call_parser = "hermes"},
                   "<think>" + call + "</think>\n\n" + call);
  CHECK(answer.reasoning == call);
  CHECK(answer.content == "");
  CHECK(answer.calls.size() == 1);
}

TEST_CASE("the end of the prompt says where the answer begins") {
  OutputParserOptions options = {.reasoning_parser = "qwen3"};
  apply_prompt_end("<|im_start|>assistant\n<think>\n", options);
  CHECK(options.thinking);
  apply_prompt_end("a <think> in a message<|im_start|>assistant\n", options);
  CHECK_FALSE(options.thinking);
  CHECK(options.reasoning_parser == "qwen3");
  apply_prompt_end("<|im_start|>assistant\n<think>\n\n</think>\n\n", options);
  CHECK_FALSE(options.thinking);
  CHECK(options.reasoning_parser == "");
}

TEST_CASE("the parsers' tags are kept where they are special tokens") {
  const auto tokenizer = tokenizer::parse_tokenizer(
      R"({"model": {"vocab": {"a": 0}},
          "added_tokens": [{"id": 1, "content": "[TOOL_CALLS]", "special": true},
                           {"id": 2, "content": "</s>", "special": true},
                           {"id": 3, "content": "<think>", "special": false}]})");
  const OutputParserOptions options = {.reasoning_parser = "qwen3", .tool_call_parser = "mistral"};
  CHECK(kept_tokens(options, *tokenizer) == std::vector<tokenizer::TokenId>{1});
  CHECK(kept_tokens({}, *tokenizer).empty());
}

TEST_CASE("a parser that does not exist is refused with those that do") {
  CHECK_THROWS_WITH_AS(make_output_parser(options_of("qwen4", false)),
                       "--reasoning-parser qwen4: there is no such parser; pass one of qwen3, "
                       "deepseek_r1, openai_gptoss",
                       Error);
  CHECK_THROWS_WITH_AS(make_output_parser({.tool_call_parser = "json"}),
                       "--tool-call-parser json: there is no such parser; pass one of hermes, "
                       "llama3_json, mistral, openai",
                       Error);
}

}  // namespace nvllm::launcher
