// An invalid request does not affect others: invalid lines of every kind among valid ones, in one
// run.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"
#include "launcher/testing/text_folder.h"

namespace nvllm::launcher {
namespace {

using testing::file_text;
using testing::Json;
using testing::Program;
using testing::TextFolder;

constexpr int kLines = 1000;

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// Not JSON, JSON that costs too much, or not an object.
std::vector<std::string> bad_json() {
  return {
      R"({"prompt": "a", "temperature": 1e400})",
      R"({"prompt": "a", "temperature": -1e400})",
      R"({"prompt": "a", "max_tokens": NaN})",
      R"({"prompt": "a", "max_tokens": Infinity})",
      repeated("[", 100'000),
      R"({"prompt": "a", "x": )" + repeated(R"({"a": )", 1000) + "1" + repeated("}", 1000) + "}",
      "[1, 2]",
      "\"text\"",
      "null",
      "7",
      "{",
      R"({"prompt": "a"} and more)",
      R"({"prompt": "a", "prompt": "b"})",
      "{\"prompt\": \"\xff\xfe\"}",
      R"({"prompt": "\ud800"})",
      "\x01\x02",
      std::string((std::size_t{64} << 20) + 1, 'x'),
  };
}

// Invalid fields.
std::vector<std::string> bad_fields() {
  return {
      R"({"prompt": 5})",
      R"({"prompt": ["a"]})",
      R"({"prompt": ""})",
      R"({"prompt_token_ids": [1, 99999999999999999999]})",
      R"({"prompt_token_ids": [-1]})",
      R"({"prompt_token_ids": [700000]})",
      R"({"prompt_token_ids": []})",
      R"({"prompt_token_ids": [1)" + repeated(", 1", 100'000) + "]}",
      R"({"prompt": "a", "max_tokens": 1e30})",
      R"({"prompt": "a", "max_tokens": -3})",
      R"({"prompt": "a", "n": 0})",
      R"({"prompt": "a", "seed": -1})",
      R"({"prompt": "a", "temperature": "hot"})",
      R"({"prompt": "a", "frobnicate": 1})",
      R"({"prompt": "a", "logit_bias": {"x": 1}})",
      R"({"prompt": "a", "logit_bias": {"700000": 1}})",
      R"({"prompt": "a", "stop": 5})",
      R"({"prompt": "a", "logprobs": 1000})",
      R"({"prompt": "a", "bad_words": [""]})",
      R"({"prompt": "a", "prompt_token_ids": [1]})",
      R"({"id": {"a": 1}, "prompt": "a"})",
      R"({"messages": []})",
      R"({"messages": "hello"})",
      R"({"messages": [{"role": "wizard", "content": "x"}]})",
      R"({"messages": [{"content": "x"}]})",
      R"({"messages": [{"role": "user", "content": 5}]})",
      R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
      R"({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": []})",
      R"({"messages": [{"role": "user", "content": "raise"}]})",
      R"({"messages": [{"role": "user", "content": "fail"}]})",
  };
}

std::string chat(const std::string& fields) {
  return R"({"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": )"
         R"({"model": "tiny", )" +
         fields + "}}";
}

std::string completion(const std::string& body) {
  return R"({"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": )" + body + "}";
}

std::string asks(const std::string& content, const std::string& more = "") {
  return chat(R"("messages": [{"role": "user", "content": ")" + content + "\"}]" + more);
}

// Invalid lines of an OpenAI batch.
std::vector<std::string> bad_batch_lines() {
  return {
      asks("x", R"(, "temperature": 1e400)"),
      asks("x", R"(, "temperature": "hot")"),
      asks("x", R"(, "max_tokens": 1e30)"),
      asks("x", R"(, "max_tokens": -1)"),
      asks("x", R"(, "n": 0)"),
      asks("x", R"(, "stream": true)"),
      asks("x", R"(, "frobnicate": 1)"),
      asks("x", R"(, "logit_bias": {"x": 1})"),
      asks("x", R"(, "logit_bias": {"700000": 1})"),
      asks("x", R"(, "tools": 5)"),
      asks("x", R"(, "tool_choice": "required")"),
      asks("x", R"(, "stop": 5)"),
      asks("x", R"(, "y": )" + repeated("[", 1000) + repeated("]", 1000)),
      asks("\xff"),
      asks("raise"),
      asks("fail"),
      chat(R"("messages": [])"),
      chat(R"("messages": "hello")"),
      chat(R"("messages": [{"role": "wizard", "content": "x"}])"),
      chat(R"("messages": [{"role": "user", "content": 5}])"),
      chat(R"("prompt": "x")"),
      R"({"custom_id": 5, "method": "POST", "url": "/v1/completions", "body": {}})",
      R"({"custom_id": "c", "method": "GET", "url": "/v1/completions", "body": {}})",
      R"({"custom_id": "c", "method": "POST", "url": "/v1/nothing", "body": {}})",
      R"({"custom_id": "c", "method": "POST", "url": 5, "body": {}})",
      R"({"custom_id": "c", "method": "POST", "body": {}})",
      R"({"custom_id": "c", "method": "POST", "url": "/v1/completions"})",
      R"({"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": "x"})",
      completion(R"({"model": "tiny"})"),
      completion(R"({"model": "other", "prompt": "x"})"),
      completion(R"({"model": "tiny", "prompt": [1, 700000]})"),
      completion(R"({"model": "tiny", "prompt": null})"),
      R"({"custom_id": "c", "url": "/v1/completions", "body": {"model": "tiny", )",
  };
}

struct Input {
  std::string text;
  std::vector<bool> good;  // per line
};

// The invalid lines, distributed among valid ones.
Input input_of(const std::vector<std::string>& bad, const std::string& good) {
  Input input;
  std::size_t next = 0;
  for (int i = 0; i < kLines; ++i) {
    const bool is_bad = i % (kLines / 50) == 7 && next < bad.size();
    input.text += (is_bad ? bad[next++] : good) + '\n';
    input.good.push_back(!is_bad);
  }
  REQUIRE(next == bad.size());
  return input;
}

// The error in an output line; empty: it is an answer.
std::string error_of(const Json& line) {
  if (line.contains("error") && line["error"].is_string()) return line["error"];
  if (!line.contains("response") || line["response"]["status_code"] == 200) return "";
  return line["response"]["body"]["error"]["message"];
}

void check_run(const TextFolder& model, const Input& input) {
  const std::string output = model.path("out.jsonl");
  std::ofstream(model.path("in.jsonl"), std::ios::binary) << input.text;
  const auto words = [&](const char* how) {
    return model.arguments(
        "generate", {"--input=" + model.path("in.jsonl"), "--output=" + output,
                     "--served-model-name=tiny", "--max-num-seqs=64", "--log-level=error", how});
  };
  Program program(words("--overwrite"));
  CHECK(program.wait() == 1);
  const auto failed = std::ranges::count(input.good, false);
  CHECK(program.errors().starts_with(str("nvllm-launch: ", failed, " lines failed; the first, ")));
  CHECK(program.errors().size() < 600);
  const std::vector<Json> lines = testing::json_lines(file_text(output));
  REQUIRE(lines.size() == input.good.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string error = error_of(lines[i]);
    CHECK_MESSAGE(error.empty() == input.good[i], "line ", i + 1, ": ", json_text(lines[i]));
    CHECK_MESSAGE(error.size() <= 300, error);
  }
  // Failed lines are in the output like answers: nothing is left to do.
  const std::string before = file_text(output);
  Program again(words("--resume"));
  CHECK(again.wait() == 1);
  CHECK(file_text(output) == before);
}

constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.content == 'raise' %}{{ raise_exception('not this') }}"
    "{% elif m.content == 'fail' %}{{ m.content.nothing.at_all }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}";

}  // namespace

TEST_CASE("a bad line is one error, and 950 others are answered") {
  const TextFolder model;
  model.set_template(kTemplate);
  std::vector<std::string> bad = bad_json();
  const std::vector<std::string> more = bad_fields();
  bad.insert(bad.end(), more.begin(), more.end());
  CHECK(bad.size() >= 40);
  check_run(model, input_of(bad, R"({"prompt_token_ids": [1, 2], "max_tokens": 1})"));
}

TEST_CASE("a bad line of a batch is one error, and the others are answered") {
  const TextFolder model;
  model.set_template(kTemplate);
  check_run(model, input_of(bad_batch_lines(), asks("hi", R"(, "max_tokens": 1)")));
}

}  // namespace nvllm::launcher
