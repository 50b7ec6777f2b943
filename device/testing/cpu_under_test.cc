#include "device/testing/backend_under_test.h"

namespace nvllm::testing {

std::unique_ptr<Backend> make_backend(std::string*) {
  return create_backend(DeviceKind::cpu);
}

}  // namespace nvllm::testing
