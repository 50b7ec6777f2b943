// The whole tokenizer against the output of Hugging Face tokenizers (testdata/make_testdata.py, and
// tests/data/golden for Qwen3).
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "testing/read_file.h"
#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/stream.h"

namespace nvllm::tokenizer {
namespace {

using Json = nlohmann::json;
using testing::read_file;

std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                     bool skip_special) {
  StreamDetokenizer stream(tokenizer, {.skip_special_tokens = skip_special});
  std::string text;
  for (const TokenId id : ids) text += stream.push(id);
  return text + stream.finish();
}

void check_decoded(const Tokenizer& tokenizer, const Json& ids, const Json& text,
                   bool skip_special) {
  CHECK(tokenizer.decode(ids, skip_special) == text);
  CHECK(streamed(tokenizer, ids, skip_special) == text);
}

void check_line(const Tokenizer& tokenizer, const Json& line) {
  if (line.contains("text")) {
    const std::string text = line["text"];
    CHECK(Json(tokenizer.encode(text, false)) == line["ids"]);
    if (line.contains("ids_special"))
      CHECK(Json(tokenizer.encode(text, true)) == line["ids_special"]);
  }
  const Json& ids = line.contains("ids_special") ? line["ids_special"] : line["ids"];
  check_decoded(tokenizer, ids, line["decoded"], false);
  for (const char* skipped : {"decoded_skip", "decoded_skip_special"}) {
    if (line.contains(skipped)) check_decoded(tokenizer, ids, line[skipped], true);
  }
}

int check_lines(const Tokenizer& tokenizer, const std::filesystem::path& path) {
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    CAPTURE(path.string());
    CAPTURE(line);
    check_line(tokenizer, parse_json(line));
  }
  return lines;
}

TEST_CASE("golden: tokenizers of every family") {
  const char* folder = std::getenv("NVLLM_TOKENIZER_TESTDATA");
  int families = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder != nullptr ? folder : "tokenizer/testdata")) {
    std::filesystem::path path = entry.path();
    if (path.extension() != ".json") continue;
    const auto tokenizer = parse_tokenizer(read_file(path));
    CHECK(check_lines(*tokenizer, path.replace_extension(".jsonl")) >= 80);
    ++families;
  }
  CHECK(families >= 19);
}

TEST_CASE("golden: Qwen3") {
  const LoadedTokenizer loaded = load_tokenizer("tests/data/qwen3-tokenizer");
  CHECK(loaded.config.eos_token == "<|im_end|>");
  CHECK_FALSE(loaded.config.bos_token.has_value());
  CHECK(loaded.tokenizer->end_id() == 151669);
  CHECK(check_lines(*loaded.tokenizer, "tests/data/golden/tokenizer_qwen3.jsonl") == 420);
  CHECK(check_lines(*loaded.tokenizer, "tests/data/golden/decode_qwen3.jsonl") == 80);
}

}  // namespace
}  // namespace nvllm::tokenizer
