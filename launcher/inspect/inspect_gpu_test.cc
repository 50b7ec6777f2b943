// nvllm-launch inspect --load on GPUs: the same bits as on the CPU.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "device/topology.h"
#include "launcher/testing/program.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json inspect(const std::string& model, const char* device, int ranks,
             const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      "inspect", "--model",     model,   "--device", device, "--tp", std::to_string(ranks),
      "--load",  "--checksums", "--json"};
  words.insert(words.end(), more.begin(), more.end());
  testing::Program program(words);
  const int exit_code = program.wait();
  REQUIRE_MESSAGE(exit_code == 0, program.errors());
  return parse_json(program.output());
}

void check_same_bits(const std::string& model, const std::vector<std::string>& more) {
  const auto gpus = static_cast<int>(visible_gpus().size());
  for (const int ranks : {1, 2, 4}) {
    if (ranks > gpus) break;
    CAPTURE(ranks);
    const Json cpu = inspect(model, "cpu", ranks, more);
    const Json gpu = inspect(model, "cuda", ranks, more);
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
      const Json& on_gpu = gpu.at("ranks")[rank].at("load");
      CHECK(on_gpu.at("checksums") == cpu.at("ranks")[rank].at("load").at("checksums"));
      CHECK(on_gpu.at("bytes_loaded") == gpu.at("ranks")[rank].at("bytes"));
    }
  }
}

// A folder with a config.json, which goes with the object.
class ConfigFolder {
 public:
  ConfigFolder() {
    path = (fs::temp_directory_path() / "inspect_XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) fail_errno("mkdtemp ", path);
    std::ofstream(path + "/config.json") << R"({"architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 200, "intermediate_size": 1000, "num_hidden_layers": 3,
        "num_attention_heads": 9, "head_dim": 64, "num_key_value_heads": 3, "vocab_size": 5003,
        "max_position_embeddings": 512})";
  }
  ConfigFolder(const ConfigFolder&) = delete;
  ConfigFolder& operator=(const ConfigFolder&) = delete;
  ~ConfigFolder() { fs::remove_all(path); }

  std::string path;
};

}  // namespace

TEST_CASE("a dummy has the same bits on GPUs as on the CPU") {
  if (visible_gpus().empty()) SKIP_TEST("needs 1 GPU, found 0");
  const ConfigFolder folder;
  for (const char* dtype : {"bfloat16", "float16", "float32"}) {
    check_same_bits(folder.path, {"--load-format", "dummy", "--dtype", dtype});
  }
}

TEST_CASE("a checkpoint has the same bits on GPUs as on the CPU") {
  if (visible_gpus().empty()) SKIP_TEST("needs 1 GPU, found 0");
  const std::string models = "tests/data/golden-models";
  if (!fs::exists(models)) SKIP_TEST("needs tests/data/golden-models");
  for (const char* name : {"/qwen3-uneven", "/qwen2-bias"}) {
    for (const char* dtype : {"bfloat16", "float32"}) {
      check_same_bits(models + name, {"--dtype", dtype});
    }
  }
}

}  // namespace nvllm::launcher
