// The whole program, on GPUs.
#include <doctest/doctest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "device/topology.h"
#include "launcher/testing/faults.h"
#include "launcher/testing/program.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

using testing::Program;

int gpus() {
  return static_cast<int>(std::min<std::size_t>(4, visible_gpus().size()));
}

testing::Setup setup() {
  return {"cuda", gpus()};
}

}  // namespace

TEST_CASE("a selftest passes on 1, 2 and 4 GPUs, with every implementation") {
  if (gpus() == 0) SKIP_TEST("needs 1 GPU, found 0");
  for (int ranks = 1; ranks <= gpus(); ranks *= 2) {
    for (const char* collectives : {"auto", "peer", "nccl"}) {
      Program program({"selftest", "--device", "cuda", "--tp", std::to_string(ranks),
                       "--collectives", collectives});
      INFO(collectives);
      CHECK(program.wait() == 0);
      INFO(program.errors());
      CHECK(program.output().ends_with("all checks passed\n"));
    }
  }
}

TEST_CASE("the device is chosen by itself, and each rank sees its own GPU") {
  if (gpus() == 0) SKIP_TEST("needs 1 GPU, found 0");
  Program program({"selftest", "--json"});
  CHECK(program.wait() == 0);
  const nlohmann::json json = parse_json(program.output());
  CHECK(json.at("device") == "cuda");
  CHECK(json.at("ranks").size() == std::min<std::size_t>(8, visible_gpus().size()));
}

TEST_CASE("more ranks than GPUs are refused") {
  if (gpus() == 0) SKIP_TEST("needs 1 GPU, found 0");
  Program program({"selftest", "--device", "cuda", "--tp", "2"},
                  [] { ::setenv("CUDA_VISIBLE_DEVICES", visible_gpus().front().c_str(), 1); });
  CHECK(program.wait() == 2);
  CHECK(program.errors().starts_with("nvllm-launch: --tp 2: this machine has 1 GPU"));
}

TEST_CASE("a rank's worker that is killed in the middle of the work is named, GPU") {
  if (gpus() == 0) SKIP_TEST("needs 1 GPU, found 0");
  for (int rank = 0; rank < gpus(); ++rank) testing::check_killed_worker(setup(), rank, SIGKILL);
  testing::check_killed_worker(setup(), gpus() - 1, SIGTERM);
}

TEST_CASE("a rank's worker that is stopped in the middle of the work is named, GPU") {
  if (gpus() == 0) SKIP_TEST("needs 1 GPU, found 0");
  for (int rank = 0; rank < gpus(); ++rank) testing::check_stopped_worker(setup(), rank);
}

TEST_CASE("SIGINT and SIGTERM stop a run within 2 s, GPU") {
  if (gpus() == 0) SKIP_TEST("needs 1 GPU, found 0");
  for (const int signal : {SIGINT, SIGTERM}) testing::check_signalled_launcher(setup(), signal);
}

TEST_CASE("no GPU process is left after the launcher was killed") {
  if (gpus() == 0) SKIP_TEST("needs 1 GPU, found 0");
  testing::check_killed_launcher(setup());
}

TEST_CASE("two launchers at the same time do not disturb each other, GPU") {
  if (gpus() == 0) SKIP_TEST("needs 1 GPU, found 0");
  testing::check_two_launchers(setup());
}

}  // namespace nvllm::launcher
