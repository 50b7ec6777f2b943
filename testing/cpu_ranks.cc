#include "device/topology.h"
#include "testing/device_ranks.h"

namespace nvllm::testing {

std::string why_no_ranks(int) {
  return {};
}

void take_device(const ipc::Member& member) {
  run_on_cores(share_of_cores(allowed_cores(), member.rank(), member.size()));
}

DeviceKind device_under_test() {
  return DeviceKind::cpu;
}

}  // namespace nvllm::testing
