#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>

#include "base/error.h"
#include "launcher/hub/hub_client.h"
#include "launcher/hub/pull.h"
#include "model/testing/test_folder.h"
#include "testing/error_of.h"

namespace nvllm::launcher {
namespace {

using model::TestFolder;
using testing::has;
using Variables = std::map<std::string, std::string>;

// Prevents these tests from using the network.
Environment with(Variables variables) {
  variables.try_emplace("HF_HUB_OFFLINE", "1");
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

// A snapshot in a cache; its files exist but are not valid.
void add_model(const TestFolder& hub, const std::string& repository, const std::string& commit,
               const std::vector<std::string>& files = {"config.json", "model.safetensors"},
               const std::string& ref = "main") {
  const std::string snapshot = repository + "/snapshots/" + commit;
  std::filesystem::create_directories(hub.path(snapshot));
  std::filesystem::create_directories(hub.path(repository + "/refs"));
  if (!ref.empty()) hub.write(repository + "/refs/" + ref, commit + "\n");
  for (const std::string& file : files) hub.write(str(snapshot, '/', file), "{}");
}

std::string found(const std::string& given, const Environment& environment, bool weights = true) {
  try {
    return find_model(given, weights, environment);
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
    CHECK(found(path, with({})) == path);
  }
}

TEST_CASE("a name is looked for in the hub's cache, wherever that is") {
  const TestFolder home;
  std::filesystem::create_directories(home.path("cache/huggingface"));
  std::filesystem::create_directories(home.path("hub"));
  add_model(home, "hub/models--Qwen--Qwen3-0.6B", "abc");
  add_model(home, "hub/models--gpt2", "def");
  std::filesystem::create_directory_symlink(home.path("hub"), home.path("cache/huggingface/hub"));
  std::filesystem::create_directory_symlink("cache", home.path(".cache"));
  const std::string hub = home.path("hub");
  const std::string snapshot = "models--Qwen--Qwen3-0.6B/snapshots/abc";
  CHECK(found("Qwen/Qwen3-0.6B", with({{"HF_HUB_CACHE", hub}})) == hub + "/" + snapshot);
  CHECK(found("gpt2", with({{"HF_HUB_CACHE", hub}})) == hub + "/models--gpt2/snapshots/def");
  CHECK(found("Qwen/Qwen3-0.6B", with({{"HF_HOME", home.path()}})) == hub + "/" + snapshot);
  CHECK(found("Qwen/Qwen3-0.6B", with({{"XDG_CACHE_HOME", home.path("cache")}})) ==
        home.path("cache/huggingface/hub/") + snapshot);
  CHECK(found("Qwen/Qwen3-0.6B", with({{"HOME", home.path()}})) ==
        home.path(".cache/huggingface/hub/") + snapshot);
  CHECK(found("https://huggingface.co/Qwen/Qwen3-0.6B", with({{"HF_HUB_CACHE", hub}})) ==
        hub + "/" + snapshot);
}

TEST_CASE("a revision is a branch, a tag or a commit; main is also the only snapshot") {
  const TestFolder hub;
  const Environment environment = with({{"HF_HUB_CACHE", hub.path()}});
  const std::string snapshots = hub.path("models--a--b/snapshots/");
  add_model(hub, "models--a--b", "only", {"config.json", "model.safetensors"}, "");
  CHECK(found("a/b", environment) == snapshots + "only");
  add_model(hub, "models--a--b", "new");
  add_model(hub, "models--a--b", "old", {"config.json", "model.safetensors"}, "v1");
  CHECK(found("a/b", environment) == snapshots + "new");
  CHECK(found("a/b@v1", environment) == snapshots + "old");
  CHECK(found("a/b@only", environment) == snapshots + "only");
  CHECK(has(found("a/b@v2", environment), "HF_HUB_OFFLINE=1 forbids to download it"));
}

TEST_CASE("a branch's file cannot lead out of the snapshots") {
  const TestFolder hub;
  add_model(hub, "models--a--b", "x");
  add_model(hub, "models--a--b", "y");
  hub.write("models--a--b/config.json", "{}");
  hub.write("models--a--b/model.safetensors", "{}");
  for (const char* const commit : {"..", "../snapshots", "x/../..", "/etc", ".", ""}) {
    hub.write("models--a--b/refs/main", commit);
    CHECK(has(found("a/b", with({{"HF_HUB_CACHE", hub.path()}})), "forbids to download it"));
  }
}

TEST_CASE("a branch's file that is a pipe, a folder or large names no commit, and nobody waits") {
  const TestFolder hub;
  const Environment environment = with({{"HF_HUB_CACHE", hub.path()}});
  add_model(hub, "models--a--b", "x");
  const std::string file = hub.path("models--a--b/refs/main");
  const std::string only = hub.path("models--a--b/snapshots/x");
  std::filesystem::resize_file(file, std::uintmax_t{1} << 40);  // a sparse file
  CHECK(found("a/b", environment) == only);
  std::filesystem::remove(file);
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  CHECK(found("a/b", environment) == only);
  std::filesystem::remove(file);
  std::filesystem::create_directories(file);
  CHECK(found("a/b", environment) == only);
}

TEST_CASE("a snapshot that lacks a file of the model is not taken") {
  const TestFolder hub;
  const Environment environment = with({{"HF_HUB_CACHE", hub.path()}});
  const std::string snapshot = hub.path("models--a--b/snapshots/c");
  add_model(hub, "models--a--b", "c", {"config.json", "tokenizer.json"});
  CHECK(has(found("a/b", environment), "no such folder or file, and not all of it in"));
  CHECK(found("a/b", environment, false) == snapshot);  // weights are not required
  hub.write("models--a--b/snapshots/c/model.safetensors.index.json",
            R"({"weight_map": {"x": "1.safetensors", "y": "2.safetensors"}})");
  hub.write("models--a--b/snapshots/c/1.safetensors", "");
  CHECK(has(found("a/b", environment), "not all of it in"));
  hub.write("models--a--b/snapshots/c/2.safetensors", "");
  CHECK(found("a/b", environment) == snapshot);
  std::filesystem::remove(snapshot + "/2.safetensors");
  std::filesystem::create_symlink("../../blobs/gone", snapshot + "/2.safetensors");
  CHECK(has(found("a/b", environment), "not all of it in"));
}

TEST_CASE("a GGUF file in the cache is found by its quantization, if all shards are there") {
  const TestFolder hub;
  const Environment environment = with({{"HF_HUB_CACHE", hub.path()}});
  add_model(hub, "models--a--b", "c", {"B-Q4_K_M.gguf", "B-Q8_0-00001-of-00002.gguf"});
  const std::string snapshot = hub.path("models--a--b/snapshots/c/");
  CHECK(found("a/b:q4_k_m", environment) == snapshot + "B-Q4_K_M.gguf");
  CHECK(has(found("a/b:Q8_0", environment), "not all of it in"));
  hub.write("models--a--b/snapshots/c/B-Q8_0-00002-of-00002.gguf", "");
  CHECK(found("a/b:Q8_0", environment) == snapshot + "B-Q8_0-00001-of-00002.gguf");
}

TEST_CASE("the environment says where the hub is, and who asks it") {
  const TestFolder home;
  home.write("token", "hf_stored\n");
  const auto settings = [&](const Variables& variables) { return hub_settings(with(variables)); };
  CHECK(settings({}).endpoint == "https://huggingface.co");
  CHECK(settings({{"HF_ENDPOINT", "http://mirror/hf/"}}).endpoint == "http://mirror/hf");
  CHECK_THROWS_AS(settings({{"HF_ENDPOINT", "mirror"}}), Error);
  CHECK(settings({{"HF_HOME", home.path()}}).token == "hf_stored");
  CHECK(settings({{"HF_TOKEN_PATH", home.path("token")}}).token == "hf_stored");
  CHECK(settings({{"HF_HOME", home.path()}, {"HF_TOKEN", " hf_a\n"}}).token == "hf_a");
  CHECK_THROWS_AS(settings({{"HF_TOKEN", "a\r\nX-Header: b"}}), Error);
  CHECK(settings({{"HF_HUB_OFFLINE", "yes"}}).offline == "HF_HUB_OFFLINE=yes");
  CHECK(settings({{"HF_HUB_OFFLINE", "0"}}).offline == "");
  CHECK(settings({{"HF_HUB_OFFLINE", "0"}, {"TRANSFORMERS_OFFLINE", "1"}}).offline ==
        "TRANSFORMERS_OFFLINE=1");
  CHECK(settings({{"HF_HUB_ETAG_TIMEOUT", "10"}}).first_answer == std::chrono::seconds(10));
  CHECK_THROWS_AS(settings({{"HF_HUB_ETAG_TIMEOUT", "soon"}}), Error);
}

}  // namespace
}  // namespace nvllm::launcher
