// Downloads from a server that implements the hub's API.
#include "launcher/hub/pull.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "launcher/hub/download.h"
#include "launcher/hub/hub_client.h"
#include "launcher/hub/testing/hub_server.h"
#include "model/testing/test_folder.h"
#include "testing/error_of.h"
#include "testing/read_file.h"

namespace nvllm::launcher {
namespace {

namespace fs = std::filesystem;
using model::TestFolder;
using testing::has;
using testing::HubServer;
using testing::noise;
using testing::read_file;

constexpr std::size_t kMiB = std::size_t{1} << 20;

HubServer::Repository folder_model(std::size_t weights) {
  HubServer::Repository repository;
  repository.files["config.json"].bytes = "{}";
  repository.files["tokenizer.json"].bytes = R"({"model": {}})";
  repository.files["empty_file.txt"].bytes = "";
  repository.files["model.safetensors"] = {.bytes = noise(weights), .lfs = true};
  return repository;
}

// A server with one model, "a/b", and a cache.
struct Case {
  explicit Case(HubServer::Repository repository) : server({{"a/b", std::move(repository)}}) {
    settings = {.endpoint = server.endpoint(),
                .token = "",
                .cache = folder.path(),
                .offline = "",
                .proxy = "",
                .first_answer = std::chrono::seconds(5)};
  }
  PulledModel pull(const HubName& name = {.repository = "a/b"}, bool weights = true) const {
    return pull_model(name, settings, weights);
  }
  std::string refusal(const HubName& name = {.repository = "a/b"}) const {
    try {
      return "pulled " + pull(name).path;
    } catch (const Error& error) {
      return error.what();
    }
  }
  std::vector<std::string> blobs(const std::string& ending) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path("models--a--b/blobs"))) {
      const std::string name = entry.path().string();
      if (name.ends_with(".incomplete") == (ending == ".incomplete")) names.push_back(name);
    }
    return names;
  }

  TestFolder folder;
  HubServer server;
  HubSettings settings;
};

TEST_CASE("pull: the model lies in the cache as huggingface_hub would put it there") {
  // More than one piece, so that several connections share it.
  const HubServer::Repository repository = folder_model(20 * kMiB + 17);
  const Case test(repository);
  const PulledModel model = test.pull();
  const std::string root = test.folder.path("models--a--b");
  CHECK(model.path == root + "/snapshots/" + repository.commit);
  CHECK(read_file(root + "/refs/main") == repository.commit);
  CHECK(model.files == 3);
  for (const char* const name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    CHECK(read_file(model.path + '/' + name) == repository.files.at(name).bytes);
    CHECK(has(fs::read_symlink(model.path + '/' + name).string(), "../../blobs/"));
  }
  CHECK_FALSE(fs::exists(model.path + "/empty_file.txt"));
  CHECK(test.blobs(".incomplete").empty());

  const std::uint64_t sent = test.server.sent();
  CHECK(sent == 20 * kMiB + 17);
  CHECK(test.pull().downloaded == 0);
  CHECK(test.server.sent() == sent);
}

TEST_CASE("pull: without weights only what describes the model is fetched, and the rest later") {
  const Case test(folder_model(kMiB));
  CHECK(test.pull({.repository = "a/b"}, false).files == 2);
  CHECK(test.server.sent() == 0);
  CHECK(test.pull().downloaded == kMiB);
}

TEST_CASE("pull: the token goes to the hub, and to no other host") {
  HubServer::Repository repository = folder_model(kMiB);
  repository.gated = true;
  Case test(repository);
  CHECK(has(test.refusal(), "is gated; accept its terms at " + test.server.endpoint() + "/a/b"));
  test.settings.token = "hf_good";
  CHECK(test.pull().downloaded > kMiB);
  std::size_t elsewhere = 0;
  for (const HubServer::Request& request : test.server.requests()) {
    if (!request.host.starts_with("localhost")) continue;
    ++elsewhere;
    CHECK_FALSE(request.has_token);
  }
  CHECK(elsewhere > 0);
}

TEST_CASE("pull: connections that are cut are made again, and nothing is fetched twice") {
  Case test(folder_model(4 * kMiB));
  test.server.cut_after = static_cast<std::int64_t>(kMiB);
  CHECK(test.pull().downloaded > 4 * kMiB);
  CHECK(test.server.sent() == 4 * kMiB);
}

TEST_CASE("pull: a download that failed is resumed where it ended") {
  Case test(folder_model(3 * kMiB));
  test.server.cut_after = 0;
  CHECK(has(test.refusal(), "what has arrived is kept"));
  // As left by another program, or one that was killed.
  REQUIRE(test.blobs(".incomplete").size() == 1);
  const std::string bytes = noise(3 * kMiB);
  std::ofstream(test.blobs(".incomplete").front(), std::ios::binary) << bytes.substr(0, 2 * kMiB);
  test.server.cut_after = -1;
  const PulledModel model = test.pull();
  CHECK(test.server.sent() == kMiB);
  CHECK(read_file(model.path + "/model.safetensors") == bytes);
}

TEST_CASE("pull: a file whose SHA-256 is another is refused, and not kept") {
  HubServer::Repository repository = folder_model(kMiB);
  repository.files["model.safetensors"].sha256 = std::string(64, 'a');
  Case test(repository);
  const std::string error = test.refusal();
  CHECK(has(error, "file model.safetensors: arrived with SHA-256 "));
  CHECK(has(error, ", not " + std::string(64, 'a')));
  // Files that were downloaded concurrently may be left incomplete.
  for (const std::string& name : test.blobs(".incomplete")) CHECK_FALSE(has(name, "aaaaaaaa"));
  CHECK_FALSE(fs::exists(test.folder.path("models--a--b/refs/main")));
}

TEST_CASE("pull: what is wrong with a name is said") {
  Case test(folder_model(kMiB));
  CHECK(has(test.refusal({.repository = "a/c"}), "model a/c: no such model at http://127.0.0.1:"));
  CHECK(has(test.refusal({.repository = "a/b", .revision = "v9"}), "has no revision 'v9'; see "));
  CHECK(has(test.refusal({.repository = "a/b", .quantization = "Q4_0"}), "it has none at all"));
  test.settings.offline = "HF_HUB_OFFLINE=1";
  CHECK(has(test.refusal(), "HF_HUB_OFFLINE=1 forbids to download it; unset that"));
}

TEST_CASE("pull: a disk that is too small is seen before anything is fetched") {
  HubServer::Repository repository = folder_model(kMiB);
  repository.files["model.safetensors"].told_size = std::uint64_t{1} << 52;
  Case test(repository);
  const std::string error = test.refusal();
  CHECK(has(error, ", and the disk of " + test.folder.path()));
  CHECK(has(error, "make room, or set HF_HUB_CACHE"));
  CHECK(test.server.sent() == 0);
}

TEST_CASE("pull: where there is no network, that is said within a second") {
  Case test(folder_model(kMiB));
  test.settings.first_answer = std::chrono::milliseconds(900);
  // An unreachable network, a closed port, and an unknown name.
  for (const char* const nowhere :
       {"http://192.0.2.1", "http://127.0.0.1:1", "http://nowhere.invalid"}) {
    test.settings.endpoint = nowhere;
    const std::int64_t started = now_ns();
    const std::string error = test.refusal();
    CHECK(seconds_since(started) < 1.5);
    CHECK(has(error, std::string("model a/b: ") + nowhere + " is not reached ("));
    CHECK(has(error, "check the network, set HF_ENDPOINT to a mirror, or pass a folder"));
  }
}

TEST_CASE("pull: servers that are busy, know no ranges or forget addresses cost time only") {
  Case test(folder_model(9 * kMiB));
  SUBCASE("busy") {
    test.server.busy = 2;
  }
  SUBCASE("no ranges") {
    test.server.no_ranges = true;
  }
  SUBCASE("addresses that expire") {
    test.server.drops_location = true;
  }
  CHECK(read_file(test.pull().path + "/model.safetensors") == noise(9 * kMiB));
}

TEST_CASE("pull: the shards of an index, and of one quantization") {
  HubServer::Repository repository;
  repository.files["config.json"].bytes = "{}";
  repository.files["model.safetensors.index.json"].bytes =
      R"({"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}})";
  repository.files["consolidated.safetensors"] = {.bytes = noise(10), .lfs = true};
  for (const char* const name :
       {"model-1.safetensors", "model-2.safetensors", "Q8_0/m-Q8_0-00001-of-00002.gguf",
        "Q8_0/m-Q8_0-00002-of-00002.gguf", "m-Q4_0.gguf"}) {
    repository.files[name] = {.bytes = noise(1000, repository.files.size()), .lfs = true};
  }
  const Case test(repository);
  CHECK(test.pull().files == 4);
  const PulledModel gguf = test.pull({.repository = "a/b", .quantization = "q8_0"});
  CHECK(gguf.files == 2);
  CHECK(
      gguf.path.ends_with("/snapshots/" + repository.commit + "/Q8_0/m-Q8_0-00001-of-00002.gguf"));
  CHECK(read_file(gguf.path) == repository.files.at("Q8_0/m-Q8_0-00001-of-00002.gguf").bytes);
}

TEST_CASE("a line of progress") {
  CHECK(download_line("a/b", 0, kMiB, 4 * kMiB, 1.0) ==
        "a/b: [#######.......................] 25%, 1 MiB of 4 MiB, 1.05 MB/s, 3 s left");
  const auto rest = [](std::uint64_t seconds) {  // at a byte a second
    const std::string line = download_line("a/b", 0, 1, 1 + seconds, 1.0);
    return line.substr(line.find("MB/s, ") + 6);
  };
  CHECK(rest(89) == "89 s left");
  CHECK(rest(90) == "2 min left");
  CHECK(rest(5399) == "90 min left");
  CHECK(rest(5400) == "1.5 h left");
}

}  // namespace
}  // namespace nvllm::launcher
