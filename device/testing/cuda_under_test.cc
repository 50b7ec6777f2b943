#include "device/testing/backend_under_test.h"
#include "device/topology.h"

namespace nvllm::testing {

std::unique_ptr<Backend> make_backend(std::string* why_not) {
  std::string why_none;
  if (visible_gpus(&why_none).empty()) {
    *why_not = "needs 1 GPU, found 0 (" + why_none + ")";
    return nullptr;
  }
  return create_backend(DeviceKind::cuda);
}

}  // namespace nvllm::testing
