// Products on the GPU: which of the ways there are takes which.
#include <utility>
#include <vector>

#include "device/cuda/stream.h"
#include "kernels/cuda/dot.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/matvec.h"
#include "kernels/linear_before.h"

namespace nvllm::kernels::cuda {
namespace {

// Without tensor cores, up to so many rows are faster when each row reads the weights itself.
constexpr std::int64_t kMaxDotRows = 4;

class CudaMatmul final : public Matmul {
 public:
  explicit CudaMatmul(Backend& backend) : gemm_(backend) {}

  void linear(const Linear& args, Stream& stream) override {
    check_linear(args);
    if (args.out.elements() == 0) return;
    if (matvec_.takes(args)) return matvec_.enqueue(args, stream);
    enqueue_before(args, stream);
    const Linear product = product_after(args);
    if (matvec_.takes(product)) return matvec_.enqueue(product, stream);
    const bool few = product.weight.dtype == DType::f32 && product.out.shape[0] <= kMaxDotRows;
    if (!few && gemm_.enqueue(product, nvllm::cuda::native(stream))) return;
    dot(product, stream);
  }

  void tune(std::span<const Linear> alike, Stream& stream) override {
    for (const Linear& args : alike) check_linear(args);
    if (alike.front().out.elements() == 0) return;
    std::vector<Linear> products;
    for (const Linear& args : alike) products.push_back(product_after(args));
    if (matvec_.takes(products.front())) return;
    for (const Linear& args : alike) enqueue_before(args, stream);
    gemm_.tune(products, stream);
  }

  ProductChoices choices() const override { return gemm_.choices(); }
  void adopt(ProductChoices choices) override { gemm_.adopt(std::move(choices)); }
  std::size_t known() override { return gemm_.known(); }

 private:
  const Matvec matvec_;
  Gemm gemm_;
};

}  // namespace

std::unique_ptr<Matmul> create_matmul(Backend& backend) {
  return std::make_unique<CudaMatmul>(backend);
}

}  // namespace nvllm::kernels::cuda
