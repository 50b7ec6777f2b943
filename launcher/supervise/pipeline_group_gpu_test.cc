// Workers of a pipeline on GPUs, to whom something happens in the middle of answers.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "device/topology.h"
#include "launcher/supervise/testing/engine_group_fixture.h"
#include "testing/skip.h"

namespace nvllm::launcher {
namespace {

// As many stages as there are GPUs, up to three: the model has as many layers. Fewer than two: no
// pipeline.
std::vector<std::string> gpus_of_pipeline() {
  std::vector<std::string> gpus = visible_gpus();
  if (gpus.size() > 3) gpus.resize(3);
  return gpus;
}

#define PIPELINE_OR_SKIP(gpus)                              \
  const std::vector<std::string> gpus = gpus_of_pipeline(); \
  if (gpus.size() < 2) SKIP_TEST(str("needs 2 GPUs, found ", gpus.size()))

}  // namespace

TEST_CASE("a worker of any pipeline stage that is killed in the middle of answers is named, GPU") {
  PIPELINE_OR_SKIP(gpus);
  const int stages = static_cast<int>(gpus.size());
  for (int victim = 0; victim < stages; ++victim) {
    EngineGroup group(stages, std::chrono::seconds(60), {}, stages, gpus);
    check_killed(group, victim);
  }
}

TEST_CASE("a worker of any pipeline stage that is stopped is named after the step timeout, GPU") {
  PIPELINE_OR_SKIP(gpus);
  const int stages = static_cast<int>(gpus.size());
  for (int victim = 0; victim < stages; ++victim) {
    EngineGroup group(stages, std::chrono::seconds(5), {}, stages, gpus);
    CHECK(check_stopped(group, victim) < 20);
  }
}

TEST_CASE("a pipeline that was idle for longer than the step timeout goes on, GPU") {
  PIPELINE_OR_SKIP(gpus);
  const int stages = static_cast<int>(gpus.size());
  EngineGroup group(stages, std::chrono::seconds(5), {}, stages, gpus);
  check_goes_on_after(group, std::chrono::milliseconds(7500));
}

}  // namespace nvllm::launcher
