#include "launcher/bench/workload.h"

#include <doctest/doctest.h>

#include <vector>

namespace nvllm::launcher {

TEST_CASE("numbers are those of Python's random module") {
  PythonRandom seven(7);  // random.seed(7)
  for (const int expected : {5305, 2471, 6468, 791, 1186}) {
    CHECK(seven.randint(0, 10000) == expected);
  }
  CHECK(seven.randint(0, 0x7fffffff) == 404285457);
  PythonRandom large((std::uint64_t{5} << 32) + 9);  // its key has two words
  for (const int expected : {9206, 5371, 4796, 255}) CHECK(large.randint(0, 10000) == expected);
}

TEST_CASE("a range of one number still draws, as Python does") {
  PythonRandom random(7);
  CHECK(random.randint(3, 3) == 3);
  CHECK(random.randint(0, 10000) == 2471);
}

TEST_CASE("the workload by default is nano-vllm's benchmark") {
  const Workload workload = make_workload({.vocabulary = 151'936});
  REQUIRE(workload.requests.size() == 256);
  CHECK(workload.output_tokens == 133'966);
  CHECK(workload.prompt_tokens == 142'827);
  const std::vector<std::size_t> lengths = {964, 724, 484, 508, 316};
  const std::vector<int> outputs = {845, 312, 607, 843, 500};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    CHECK(workload.requests[i].prompt.size() == lengths[i]);
    CHECK(workload.requests[i].sampling.max_tokens == outputs[i]);
  }
  CHECK(workload.requests[0].prompt[0] == 6311);
  CHECK(workload.requests[0].prompt[4] == 8376);
  CHECK(workload.requests[255].prompt.back() == 1958);
  CHECK(workload.requests[255].sampling.max_tokens == 312);
  CHECK(workload.requests[0].sampling.temperature == 0.6);
  CHECK(workload.requests[0].sampling.ignore_eos);
}

TEST_CASE("ids stay within a small vocabulary, lengths within their ranges") {
  const Workload workload = make_workload(
      {.sequences = 20, .prompt = {3, 9}, .output = {5, 5}, .seed = 1, .vocabulary = 32});
  REQUIRE(workload.requests.size() == 20);
  std::int64_t prompts = 0;
  for (const runtime::Request& request : workload.requests) {
    CHECK(request.prompt.size() >= 3);
    CHECK(request.prompt.size() <= 9);
    CHECK(request.sampling.max_tokens == 5);
    for (const std::int32_t id : request.prompt) {
      CHECK(id >= 0);
      CHECK(id < 32);
    }
    prompts += static_cast<std::int64_t>(request.prompt.size());
  }
  CHECK(workload.prompt_tokens == prompts);
  CHECK(workload.output_tokens == 100);
}

TEST_CASE("another seed is another workload, the same seed the same") {
  const WorkloadOptions options{.sequences = 4, .seed = 3, .vocabulary = 1000};
  const Workload once = make_workload(options), again = make_workload(options);
  WorkloadOptions other = options;
  other.seed = 4;
  CHECK(once.requests[2].prompt == again.requests[2].prompt);
  CHECK(once.requests[2].prompt != make_workload(other).requests[2].prompt);
}

}  // namespace nvllm::launcher
