// nvllm-launch generate as a program, on GPUs.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "base/text.h"
#include "device/topology.h"
#include "launcher/testing/generate_run.h"
#include "launcher/testing/program.h"
#include "testing/ranks.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using testing::file_text;
using testing::golden_model;
using testing::Json;
using testing::json_lines;
using testing::Program;
using testing::TemporaryFolder;

int gpus() {
  return static_cast<int>(visible_gpus().size());
}

std::vector<std::string> on_gpus(const std::string& model, int ranks,
                                 const std::vector<std::string>& more) {
  std::vector<std::string> words = {"generate",
                                    "--model",
                                    golden_model(model),
                                    "--device=cuda",
                                    "--kv-cache-memory-bytes=64M",
                                    "--tp",
                                    std::to_string(ranks)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

TEST_CASE("tokens are those of transformers, on 1 and more GPUs") {
  if (gpus() < 1) SKIP_TEST("needs 1 GPU, found 0");
  const TemporaryFolder folder;
  const Json known = parse_json(file_text(golden_model("qwen3-uneven") + "/expected.json"));
  std::string input;
  for (const Json& prompt : known.at("prompts")) {
    input += json_text(Json{{"prompt_token_ids", prompt.at("ids")},
                            {"max_tokens", prompt.at("continuation").size()}}) +
             "\n";
  }
  const std::string path = folder.file("in.jsonl", input);
  for (int ranks = 1; ranks <= std::min(gpus(), 4); ranks *= 2) {
    CAPTURE(ranks);
    Program program(
        on_gpus("qwen3-uneven", ranks,
                {"--dtype=float32", "--input", path, "--temperature=0", "--ignore-eos"}));
    const int exit_code = program.wait();
    REQUIRE_MESSAGE(exit_code == 0, program.errors());
    const auto lines = json_lines(program.output());
    REQUIRE(lines.size() == known.at("prompts").size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      CHECK(lines[i].at("token_ids") == known.at("prompts")[i].at("continuation"));
    }
  }
}

TEST_CASE("a worker's death in the middle of a generation ends it with 3, and leaves nothing") {
  if (gpus() < 1) SKIP_TEST("needs 1 GPU, found 0");
  const TemporaryFolder folder;
  const int ranks = std::min(gpus(), 2);
  std::string input;
  for (int i = 0; i < 2000; ++i) {
    input += str("{\"prompt_token_ids\": [", i % 500 + 1, "], \"max_tokens\": 400}\n");
  }
  const std::string output = folder.path("out.jsonl");
  Program program(on_gpus("qwen3-uneven", ranks,
                          {"--input", folder.file("in.jsonl", input), "--output", output,
                           "--max-num-seqs=8", "--ignore-eos"}));
  const std::vector<pid_t> workers = program.workers(ranks);
  REQUIRE(testing::await_until([&] { return !file_text(output).empty(); }));
  ::kill(workers.back(), SIGKILL);
  CHECK(program.wait() == 3);
  CHECK(json_lines(file_text(output)).size() > 0);
  CHECK(testing::lingering_shm_names().empty());
}

}  // namespace nvllm::launcher
