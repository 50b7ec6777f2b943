#include "testing/bench_backend.h"

#include <string>

#include "device/topology.h"

namespace nvllm::testing {

std::unique_ptr<Backend> backend_or_skip(benchmark::State& state, DeviceKind kind) {
  std::string why = "this program was built without CUDA";
  if (kind == DeviceKind::cuda && (!cuda_built() || visible_gpus(&why).empty())) {
    state.SkipWithError(why.c_str());
    return nullptr;
  }
  return create_backend(kind);
}

}  // namespace nvllm::testing
