#include <cstdlib>
#include <vector>

#include "base/text.h"
#include "device/topology.h"
#include "testing/device_ranks.h"

namespace nvllm::testing {

std::string why_no_ranks(int ranks) {
  std::string why;
  const std::size_t gpus = visible_gpus(&why).size();
  if (static_cast<int>(gpus) >= ranks) return {};
  return str("needs ", ranks, ranks == 1 ? " GPU" : " GPUs", ", found ", gpus,
             why.empty() ? "" : " (" + why + ")");
}

void take_device(const ipc::Member& member) {
  const std::vector<std::string> gpus = visible_gpus();
  const std::size_t own = static_cast<std::size_t>(member.rank()) % gpus.size();
  setenv("CUDA_VISIBLE_DEVICES", gpus[own].c_str(), 1);
}

DeviceKind device_under_test() {
  return DeviceKind::cuda;
}

}  // namespace nvllm::testing
