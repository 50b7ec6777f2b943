// `nvllm-launch pull`, and commands whose --model is not in the cache, as programs.
#include <doctest/doctest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "launcher/hub/testing/hub_server.h"
#include "launcher/testing/program.h"
#include "launcher/testing/text_folder.h"
#include "model/testing/test_folder.h"
#include "testing/error_of.h"

namespace {

using nvllm::model::TestFolder;
using nvllm::testing::has;
using nvllm::testing::HubServer;
using nvllm::testing::Program;
using nvllm::testing::TextFolder;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A hub with the tiny model "tiny/model", and a cache.
struct Hub {
  explicit Hub(std::size_t weight_bytes)
      : server({{"tiny/model", nvllm::testing::text_repository(text.path(), weight_bytes)}}) {}

  explicit Hub(const std::string& model_folder)
      : server({{"tiny/model", nvllm::testing::folder_repository(model_folder)}}) {}

  Program run(const std::vector<std::string>& arguments) const {
    return Program(arguments, [endpoint = server.endpoint(), cache = folder.path()] {
      ::setenv("HF_ENDPOINT", endpoint.c_str(), 1);
      ::setenv("HF_HUB_CACHE", cache.c_str(), 1);
      for (const char* const name : {"HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
        ::unsetenv(name);
      }
    });
  }
  bool complete() const {
    return std::filesystem::exists(folder.path("models--tiny--model/refs/main"));
  }

  TextFolder text;
  TestFolder folder;
  HubServer server;
};

void await_bytes(const HubServer& server, std::uint64_t bytes) {
  for (int i = 0; i < 1000 && server.sent() < bytes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

TEST_CASE("pull prints where the model is, and what it did on standard error") {
  const Hub hub(2 * kMiB);
  Program pull = hub.run({"pull", "tiny/model"});
  CHECK(pull.wait() == 0);
  CHECK(has(pull.output(), hub.folder.path("models--tiny--model/snapshots/")));
  CHECK(has(pull.errors(), "tiny/model: 4 files, 2.0"));
  Program wrong = hub.run({"pull", "./tiny"});
  CHECK(wrong.wait() == 2);
  CHECK(has(wrong.errors(), "pull ./tiny: is no name of a model; pass one such as"));
}

TEST_CASE("--model with a name downloads the model, once, and runs it") {
  const Hub hub(kMiB);
  std::vector<std::string> arguments =
      hub.text.arguments("generate", {"--prompt=Hi", "--max-tokens=3"});
  for (std::string& argument : arguments) {
    if (argument.starts_with("--model=")) argument = "--model=tiny/model";
  }
  Program first = hub.run(arguments);
  CHECK(first.wait() == 0);
  CHECK(has(first.output(), "\"token_ids\""));
  CHECK(hub.server.sent() == 0);  // its weights are not needed: --load-format dummy
  const std::size_t requests = hub.server.requests().size();
  Program second = hub.run(arguments);
  CHECK(second.wait() == 0);
  CHECK(has(second.output(), "\"token_ids\""));
  CHECK(hub.server.requests().size() == requests);
}

TEST_CASE("--model with a name downloads weights, and runs the model that has them") {
  const std::string golden = "tests/data/golden-models/qwen3-gqa-tied";
  Hub hub(golden);
  Program program = hub.run({"generate", "--model=tiny/model", "--device=cpu", "--prompt-ids=1,2,3",
                             "--max-tokens=2", "--temperature=0", "--max-model-len=64",
                             "--kv-cache-memory-bytes=16M"});
  CHECK(program.wait() == 0);
  CHECK(has(program.output(), "\"token_ids\""));
  CHECK(hub.server.sent() == std::filesystem::file_size(golden + "/model.safetensors"));
  CHECK(hub.complete());
}

TEST_CASE("Ctrl-C keeps what has arrived, and the next pull goes on from there") {
  Hub hub(2 * kMiB);
  hub.server.slow = true;
  Program pull = hub.run({"pull", "tiny/model"});
  await_bytes(hub.server, kMiB / 2);
  pull.signal(SIGINT);
  CHECK(pull.wait(std::chrono::seconds(2)) == 130);
  CHECK(has(pull.errors(), "stopped by SIGINT; what has arrived is kept"));
  CHECK_FALSE(hub.complete());
  hub.server.slow = false;
  Program again = hub.run({"pull", "tiny/model"});
  CHECK(again.wait() == 0);
  CHECK(has(again.errors(), "of 2 MiB are there already"));
  CHECK(hub.complete());
  CHECK(hub.server.sent() < 3 * kMiB);
}

TEST_CASE("two processes that pull the same model fetch it once") {
  Hub hub(kMiB);
  hub.server.slow = true;
  Program first = hub.run({"pull", "tiny/model"});
  await_bytes(hub.server, 1);
  Program second = hub.run({"pull", "tiny/model"});
  CHECK(second.await_error("another process downloads it; waiting"));
  CHECK(first.wait() == 0);
  CHECK(second.wait() == 0);
  CHECK(first.output() == second.output());
  CHECK(hub.server.sent() == kMiB);
}

TEST_CASE("after a process that was killed another one goes on") {
  Hub hub(2 * kMiB);
  hub.server.slow = true;
  Program first = hub.run({"pull", "tiny/model"});
  await_bytes(hub.server, kMiB / 2);
  first.signal(SIGKILL);
  CHECK(first.wait() == 1000 + SIGKILL);
  hub.server.slow = false;
  Program second = hub.run({"pull", "tiny/model"});
  CHECK(second.wait() == 0);
  CHECK(hub.complete());
}
