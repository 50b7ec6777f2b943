// generate with lines in the format of OpenAI's batch API; and one invalid line among valid ones.
#include <doctest/doctest.h>

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

using Json = nlohmann::json;
using testing::json_lines;
using testing::Program;
using testing::TextFolder;

// Runs with these input lines; checks the exit code.
std::vector<Json> run(const TextFolder& model, const std::string& input, int exit_code = 0,
                      std::vector<std::string> more = {}) {
  std::ofstream(model.path("in.jsonl"), std::ios::binary) << input;
  more.insert(more.begin(), {"--input=" + model.path("in.jsonl"), "--served-model-name=tiny",
                             "--seed=7", "--log-level=error"});
  Program program(model.arguments("generate", more));
  const int code = program.wait();
  CHECK_MESSAGE(code == exit_code, program.errors());
  return json_lines(program.output());
}

std::string batch_line(const std::string& id, const std::string& url, const Json& body) {
  return json_text(Json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}) +
         '\n';
}

std::string chat_line(const std::string& id, Json body) {
  body["model"] = "tiny";
  if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "hi"}}};
  return batch_line(id, "/v1/chat/completions", body);
}

std::string completion_line(const std::string& id, Json body) {
  body["model"] = "tiny";
  return batch_line(id, "/v1/completions", body);
}

}  // namespace

TEST_CASE("a batch is answered in the shape of OpenAI's API, with the server's bodies") {
  const TextFolder model;
  const Json part = {{{"type", "text"}, {"text", "hi"}}};
  const std::vector<Json> lines =
      run(model,
          chat_line("one", {{"max_tokens", 6}, {"seed", 5}}) +
              chat_line("parts", {{"max_tokens", 6},
                                  {"seed", 5},
                                  {"messages", {{{"role", "user"}, {"content", part}}}}}) +
              completion_line("two", {{"prompt", {"the", "a"}}, {"n", 2}, {"max_tokens", 3}}) +
              R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "seed": 5})");
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["custom_id"] == "one");
  CHECK(lines[0]["id"] == "batch_req_1");
  CHECK(lines[0]["error"].is_null());
  CHECK(lines[0]["response"]["status_code"] == 200);
  const Json& chat = lines[0]["response"]["body"];
  CHECK(chat["object"] == "chat.completion");
  CHECK(chat["model"] == "tiny");
  CHECK(chat["usage"]["completion_tokens"] == 6);
  CHECK(chat["choices"][0]["message"]["content"] == lines[3]["text"]);
  CHECK(lines[1]["response"]["body"]["choices"] == chat["choices"]);
  const Json& completion = lines[2]["response"]["body"];
  CHECK(completion["object"] == "text_completion");
  REQUIRE(completion["choices"].size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(completion["choices"][i]["index"] == i);
  CHECK(completion["usage"]["completion_tokens"] == 12);
}

TEST_CASE("options of the command line hold for lines of a batch that do not say it themselves") {
  const TextFolder model;
  const std::string line = chat_line("a", {{"seed", 5}, {"ignore_eos", true}});
  const std::vector<Json> whole = run(model, line, 0, {"--max-tokens=24"});
  REQUIRE(whole.size() == 1);
  const std::string text = whole[0]["response"]["body"]["choices"][0]["message"]["content"];
  CHECK(whole[0]["response"]["body"]["usage"]["completion_tokens"] == 24);
  std::size_t at = text.size() / 2;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  std::size_t end = at + 1;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  const std::string stop = text.substr(at, end - at);
  const std::vector<Json> stopped =
      run(model, line, 0, {"--max-tokens=24", "--stop=" + stop, "--logprobs=1"});
  const Json& choice = stopped.at(0)["response"]["body"]["choices"][0];
  CHECK(choice["message"]["content"] == text.substr(0, text.find(stop)));
  CHECK(choice["finish_reason"] == "stop");
  CHECK(choice["logprobs"]["content"].is_array());
}

TEST_CASE("a bad line of a batch is that line's error, with its status") {
  const TextFolder model;
  const std::vector<Json> lines =
      run(model,
          chat_line("good", {{"max_tokens", 2}}) + "nonsense\n" +
              chat_line("range", {{"temperature", -1}}) + chat_line("stream", {{"stream", true}}) +
              batch_line("model", "/v1/completions", {{"model", "gpt-4o"}, {"prompt", "a"}}) +
              completion_line("refused", {{"prompt", {{1, 2}, {99999}, {3}}}, {"max_tokens", 9}}) +
              batch_line("url", "/v1/embeddings", {{"input", "a"}}) +
              chat_line("last", {{"max_tokens", 2}}),
          1);
  REQUIRE(lines.size() == 8);
  const auto status = [&](std::size_t i) { return lines[i]["response"]["status_code"].get<int>(); };
  const auto message = [&](std::size_t i) {
    return lines[i]["response"]["body"]["error"]["message"].get<std::string>();
  };
  CHECK(status(0) == 200);
  CHECK(lines[1]["custom_id"].is_null());
  CHECK(status(1) == 400);
  CHECK(message(1) == "no valid JSON at column 2");
  CHECK(lines[2]["custom_id"] == "range");
  CHECK(status(2) == 400);
  CHECK(lines[2]["response"]["body"]["error"]["param"] == "temperature");
  CHECK(message(3) == "stream: the answers of a batch are whole; pass false, or leave it out");
  CHECK(status(4) == 404);
  CHECK(status(5) == 400);
  CHECK(message(5).find("99999") != std::string::npos);
  CHECK(status(6) == 400);
  CHECK(status(7) == 200);
}

TEST_CASE("a batch is resumed") {
  const TextFolder model;
  const std::string output = model.path("out.jsonl");
  std::string input;
  for (const char* const id : {"a", "b", "c"}) input += chat_line(id, {{"max_tokens", 3}});
  run(model, input, 0, {"--output=" + output});
  const std::string whole = testing::file_text(output);
  REQUIRE(json_lines(whole).size() == 3);
  const std::size_t first = whole.find('\n') + 1;
  std::ofstream(output, std::ios::binary) << whole.substr(0, first) << "{\"id\": \"batch";
  run(model, input, 0, {"--output=" + output, "--resume"});
  const std::vector<Json> resumed = json_lines(testing::file_text(output));
  REQUIRE(resumed.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(resumed[i]["custom_id"] == json_lines(whole)[i]["custom_id"]);
    CHECK(resumed[i]["response"]["body"]["choices"] ==
          json_lines(whole)[i]["response"]["body"]["choices"]);
  }
  run(model, chat_line("other", {}), 1, {"--output=" + output, "--resume"});
}

namespace {

// Forty kinds of invalid lines. The last ones are detected by the engine.
std::vector<std::string> bad_lines() {
  const std::string ids = R"({"prompt_token_ids": [1], )";
  const std::string user = R"({"role": "user", "content": "a"})";
  return {
      "nonsense",
      "{",
      "[1, 2]",
      "null",
      "{}",
      "\xff\xfe",
      std::string("{\"prompt\": \"a\0b\"}", 17),
      R"({"prompt": "\ud800"})",
      R"({"prompt": "a" "b"})",
      R"({"prompt": "a"} {"prompt": "b"})",
      R"({"prompt": "a", "prompt": "b"})",
      R"({"prompt": "a", "temperature": 1e400})",
      R"({"prompt": "a", "max_tokens": 1e400})",
      R"({"prompt": "a", "seed": 99999999999999999999999})",
      R"({"prompt": "a", "logit_bias": {"1": -1e999}})",
      ids + R"("temperature": "hot"})",
      ids + R"("temperature": -1})",
      ids + R"("top_p": 0})",
      ids + R"("max_tokens": 0})",
      ids + R"("n": 1.5})",
      ids + R"("n": 4000000000})",
      ids + R"("max_token": 5})",
      ids + R"("stop": [1]})",
      ids + R"("id": [1]})",
      ids + R"("bad_words": [""]})",
      R"({"prompt_token_ids": []})",
      R"({"prompt_token_ids": [-1]})",
      R"({"prompt_token_ids": [1.5]})",
      R"({"prompt": ""})",
      R"({"prompt": "a", "messages": []})",
      R"({"messages": []})",
      R"({"messages": "hi"})",
      R"({"messages": [{"role": "robot", "content": "a"}]})",
      R"({"messages": [{"role": "user", "role": "user", "content": "a"}]})",
      R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
      R"({"messages": [{"content": "a"}]})",
      R"({"messages": [)" + user + R"(], "chat_template_kwargs": 5})",
      std::string(200'000, '['),
      ids + R"("allowed_token_ids": [99999]})",
      R"({"prompt_token_ids": [99999]})",
  };
}

}  // namespace

TEST_CASE("one bad line of forty kinds costs nobody else's answer") {
  const TextFolder model;
  const std::vector<std::string> kinds = bad_lines();
  REQUIRE(kinds.size() == 40);
  constexpr std::size_t kLines = 25, kBad = 11;
  for (const std::string& bad : kinds) {
    CAPTURE(bad.substr(0, 100));
    std::string input;
    for (std::size_t i = 0; i < kLines; ++i) {
      input +=
          i == kBad ? bad + '\n' : str("{\"prompt_token_ids\": [", i + 1, "], \"id\": ", i, "}\n");
    }
    const std::vector<Json> lines = run(model, input, 1, {"--max-tokens=2", "--ignore-eos"});
    REQUIRE(lines.size() == kLines);
    for (std::size_t i = 0; i < kLines; ++i) {
      CHECK(lines[i]["line"] == i + 1);
      CHECK(lines[i].contains("error") == (i == kBad));
      if (i == kBad) {
        CHECK(lines[i]["error"].get<std::string>().size() <= 300);
      } else {
        CHECK(lines[i]["token_ids"].size() == 2);
      }
    }
  }
}

}  // namespace nvllm::launcher
