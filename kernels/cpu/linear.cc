// Products on the CPU, plainly.
#include "kernels/cpu/linear.h"

#include "device/cpu/stream.h"
#include "kernels/linear_before.h"

namespace nvllm::kernels::cpu {
namespace {

class PlainMatmul final : public Matmul {
 public:
  void linear(const Linear& args, Stream& stream) override {
    check_linear(args);
    nvllm::cpu::stream(stream).host_call([args] { linear_reference(args); });
  }
  void tune(const Linear&, Stream&) override {}
};

}  // namespace

std::unique_ptr<Matmul> create_matmul(Backend&) {
  return std::make_unique<PlainMatmul>();
}

}  // namespace nvllm::kernels::cpu
