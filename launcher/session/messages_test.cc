#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "launcher/session/text_model.h"

namespace nvllm::launcher {
namespace {

// Prepared messages as JSON.
std::string prepared(const std::string& messages, bool template_takes_parts = false) {
  return jinja::to_json(prepare_messages(jinja::from_json(messages, "test"), template_takes_parts),
                        {});
}

std::string refusal(const std::string& messages) {
  try {
    return prepared(messages);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("content that is text or null stays, whatever the role and beside it") {
  const std::string messages =
      R"([{"role": "oracle", "content": "a"}, {"role": "assistant", "content": null, )"
      R"("tool_calls": [{"id": 1}]}, {"role": "user"}])";
  CHECK(prepared(messages) == messages);
  CHECK(prepared(messages, true) == messages);
}

TEST_CASE("parts of text become one text with newlines, in their place among the keys") {
  CHECK(prepared(R"([{"role": "user", "content": [{"type": "text", "text": "a"},
                     {"type": "text", "text": ""}, {"type": "text", "text": "b"}],
                     "name": "x"}])") == R"([{"role": "user", "content": "a\n\nb", "name": "x"}])");
  CHECK(prepared(R"([{"role": "user", "content": []}])") == R"([{"role": "user", "content": ""}])");
}

TEST_CASE("a template that takes parts gets them, without what is not the text") {
  CHECK(prepared(R"([{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}, "b"]}])",
                 true) == R"([{"role": "user", "content": [{"type": "text", "text": "a"}, )"
                          R"({"type": "text", "text": "b"}]}])");
}

TEST_CASE("parts that other APIs name by their direction are text") {
  CHECK(prepared(R"([{"role": "user", "content": [{"type": "input_text", "text": "a"}, "b",
                     {"type": "output_text", "text": "c"},
                     {"type": "refusal", "refusal": "d"}]}])") ==
        R"([{"role": "user", "content": "a\nb\nc\nd"}])");
}

TEST_CASE("a role is known to all, or to the template, or else it is named") {
  const tokenizer::ChatTemplate chatml(
      "{% for m in messages %}{% if m.role == 'critic' %}!{% endif %}{{ m.content }}{% endfor %}",
      {});
  const auto role = [&](const std::string& name) -> std::string {
    const std::string messages =
        R"([{"role": "user", "content": "a"}, {"role": ")" + name + R"(", "content": "b"}])";
    try {
      check_roles(prepare_messages(jinja::from_json(messages, "test"), false), chatml);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const char* const known :
       {"system", "developer", "user", "assistant", "tool", "function", "critic"}) {
    CHECK(role(known) == "");
  }
  CHECK(role("usr") ==
        "messages[1]: role 'usr': neither the API nor the chat template knows it; pass system, "
        "user, assistant or tool");
  CHECK(role("") != "");
  CHECK(role(std::string(10000, 'x')).size() < 200);
}

TEST_CASE("what is wrong is told with its place and the fix") {
  CHECK(refusal(R"("hi")") == "messages: a string; they must be a list");
  CHECK(refusal("[]") == "messages: an empty list; pass at least one message");
  CHECK(refusal(R"(["hi"])") ==
        R"(messages[0]: a string; pass a message such as {"role": "user", "content": "Hi"})");
  CHECK(refusal(R"([{"content": "hi"}])") == "messages[0]: a message without a string \"role\"");
  CHECK(refusal(R"([{"role": "user", "content": "hi"}, {"role": "user", "content": 5}])") ==
        "messages[1]: content: a integer; pass a string or a list of parts");
  const auto part = [](const std::string& text) {
    return refusal(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, )" + text +
                   "]}]");
  };
  const std::string at = "messages[0]: content[1]: ";
  CHECK(part(R"({"type": "image_url", "image_url": {"url": "data:,"}})") ==
        at + "a part of type image_url: the model reads text only; pass parts of type text");
  CHECK(part(R"({"type": "input_audio"})") ==
        at + "a part of type input_audio: the model reads text only; pass parts of type text");
  CHECK(part(R"({"type": "text"})") == at + "a part of type text without a string \"text\"");
  CHECK(part(R"({"text": "a"})") ==
        at + R"(a part without a type; pass {"type": "text", "text": "Hi"})");
  CHECK(part("5") == at + R"(a integer; pass a part such as {"type": "text", "text": "Hi"})");
}

}  // namespace nvllm::launcher
