#include "launcher/supervise/gpu_names.h"

#include <doctest/doctest.h>

namespace nvllm::launcher {

TEST_CASE("names of GPUs are UUIDs, however they were selected, and no plain numbers") {
  using Strings = std::vector<std::string>;
  const Strings uuids = {"GPU-3fa0c9d1-aaaa", "GPU-3fb1d2e3-bbbb", "GPU-90ab12cd-cccc"};
  CHECK(names_of_gpus({"2", "GPU-3fb"}, uuids) == Strings{uuids[2], uuids[1]});
  CHECK(names_of_gpus({"MIG-1"}, uuids) == Strings{"MIG-1"});
  CHECK(names_of_gpus({"0"}, {}).empty());
}

}  // namespace nvllm::launcher
