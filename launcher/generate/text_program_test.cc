// generate with text: prompts, conversations, stop strings, pieces.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"
#include "launcher/testing/text_folder.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using testing::Program;
using testing::TextFolder;

std::vector<Json> run_text(const TextFolder& model, std::vector<std::string> more,
                           int exit_code = 0) {
  more.insert(more.begin(), {"--temperature=1", "--max-tokens=24", "--ignore-eos"});
  Program program(model.arguments("generate", more));
  CHECK(program.wait() == exit_code);
  return testing::json_lines(program.output());
}

std::vector<Json> run_lines(const TextFolder& model, const std::vector<Json>& input,
                            int exit_code = 0) {
  std::ofstream file(model.path("in.jsonl"));
  for (const Json& line : input) file << json_text(line) << '\n';
  file.close();
  return run_text(model, {"--input=" + model.path("in.jsonl")}, exit_code);
}

std::string decoded(const TextFolder& model, const Json& ids) {
  std::vector<std::string> words = {"detokenize", "--model=" + model.path(),
                                    "--skip-special-tokens"};
  for (const Json& id : ids) words.push_back(json_text(id));
  Program program(words);
  CHECK(program.wait() == 0);
  const std::string out = program.output();
  return out.substr(0, out.size() - 1);
}

TEST_CASE("a text is continued, and answers have text") {
  const TextFolder model;
  const std::vector<Json> lines = run_text(model, {"--prompt=the lighthouse", "--prompt-ids=1,2"});
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["prompt_token_ids"] == Json{1, 2});
  for (const Json& line : lines) CHECK(line["text"] == decoded(model, line["token_ids"]));
  CHECK(decoded(model, lines[1]["prompt_token_ids"]) == "the lighthouse");
}

TEST_CASE("prompts, conversations and ids are the same request when their ids are") {
  const TextFolder model;
  const std::string rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  const std::vector<Json> lines =
      run_lines(model, {{{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"seed", 5}},
                        {{"prompt", rendered}, {"seed", 5}}});
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["prompt_token_ids"] == lines[1]["prompt_token_ids"]);
  CHECK(lines[0]["token_ids"] == lines[1]["token_ids"]);
  CHECK(lines[0]["text"] == lines[1]["text"]);
}

TEST_CASE("a stop string ends an answer and is no part of it, whichever tokens it spans") {
  const TextFolder model;
  const Json whole = run_text(model, {"--prompt=the"})[0];
  const std::string text = whole["text"];
  REQUIRE(text.size() > 12);
  std::size_t begin = text.size() / 2;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) ++begin;
  std::size_t end = begin + 3;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  const std::string stop = text.substr(begin, end - begin);
  const Json stopped = run_lines(model, {{{"prompt", "the"}, {"stop", {stop, "never"}}}})[0];
  CHECK(stopped["text"] == text.substr(0, text.find(stop)));
  CHECK(stopped["finish_reason"] == "stop");
  CHECK(stopped["stop_reason"] == stop);
  CHECK(stopped["token_ids"].size() < whole["token_ids"].size());
  const Json by_option = run_text(model, {"--prompt=the", "--stop=" + stop})[0];
  CHECK(by_option["text"] == stopped["text"]);
}

TEST_CASE("pieces make up the text, and the whole answer follows them") {
  const TextFolder model;
  const std::vector<Json> lines = run_text(model, {"--prompt=the", "--stream"});
  REQUIRE(lines.size() > 2);
  std::string text;
  Json ids = Json::array();
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    text += lines[i]["delta"].get<std::string>();
    for (const Json& id : lines[i]["token_ids"]) ids.push_back(id);
  }
  CHECK(lines.back()["text"] == text);
  CHECK(lines.back()["token_ids"] == ids);
}

TEST_CASE("bad words as text do not come") {
  const TextFolder model;
  const Json first = run_text(model, {"--prompt=the"})[0];
  const std::string word = decoded(model, {first["token_ids"][0]});
  if (word.empty() || word.find("\xEF\xBF\xBD") != std::string::npos) return;
  const Json other = run_lines(model, {{{"prompt", "the"}, {"bad_words", {word}}}})[0];
  CHECK(other["token_ids"][0] != first["token_ids"][0]);
}

TEST_CASE("content in parts of text is the text") {
  const TextFolder model;
  const auto answer = [&](const Json& content) {
    const Json messages = {{{"role", "user"}, {"content", content}}};
    return run_lines(model, {{{"messages", messages}, {"seed", 5}}})[0]["token_ids"];
  };
  const Json a = {{"type", "text"}, {"text", "a"}}, b = {{"type", "text"}, {"text", "b"}};
  const Json joined = answer("a\nb");
  CHECK(answer(Json::array({a, b})) == joined);
  CHECK(answer("ab") != joined);
  // Templates that handle content parts receive them.
  model.set_template(
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}");
  CHECK(answer(Json::array({a, b})) == answer("ab"));
}

TEST_CASE("what is wrong with a text is its line's error") {
  const TextFolder model;
  const std::vector<Json> lines = run_lines(model,
                                            {{{"prompt", 7}},
                                             {{"prompt", ""}},
                                             {{"prompt", "a"}, {"prompt_token_ids", {1}}},
                                             {{"messages", "hi"}},
                                             {{"messages", Json::array()}},
                                             {{"prompt", "a"}, {"stop", {1}}},
                                             {{"prompt", "a"}, {"tools", Json::array()}}},
                                            1);
  REQUIRE(lines.size() == 7);
  CHECK(lines[0]["error"] == "prompt: 7: no text");
  CHECK(lines[1]["error"] == "prompt: \"\": an empty prompt");
  CHECK(lines[2]["error"] == "prompt_token_ids and prompt: pass one of them");
  CHECK(lines[3]["error"] == "messages: a string; they must be a list");
  CHECK(lines[4]["error"] == "messages: an empty list; pass at least one message");
  CHECK(lines[5]["error"] == "stop: 1: no text");
  CHECK(lines[6]["error"] == "tools: is for messages alone");
}

TEST_CASE("a model without a tokenizer takes ids alone") {
  const TextFolder model;
  std::filesystem::remove(model.path("tokenizer.json"));
  const std::vector<Json> lines = run_text(model, {"--prompt-ids=1,2"});
  REQUIRE(lines.size() == 1);
  CHECK_FALSE(lines[0].contains("text"));
  CHECK(run_lines(model, {{{"prompt", "a"}}}, 1)[0]["error"] ==
        "prompt: needs text, and the model has no tokenizer; pass prompt_token_ids");
  Program program(model.arguments("generate", {"--prompt=a"}));
  CHECK(program.wait() == 1);
  CHECK(program.errors().find("has no tokenizer") != std::string::npos);
}

}  // namespace
}  // namespace nvllm::launcher
