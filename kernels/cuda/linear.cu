// Products on the GPU: which of the ways there are takes which.
#include <algorithm>

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

// From so many rows and outputs on cuBLASLt's best algorithm for them, which tuning finds, is faster
// than Matvec (by 1 to 5% on an H200); its heuristic's first is not.
constexpr std::int64_t kGemmRows = 9, kGemmOutputs = 16384;

bool gemm_may_win(const Linear& args) {
  return args.out.shape[0] >= kGemmRows && args.out.shape[1] >= kGemmOutputs;
}

class CudaMatmul final : public Matmul {
 public:
  explicit CudaMatmul(Backend& backend) : gemm_(backend) {}

  void linear(const Linear& args, Stream& stream) override {
    check_linear(args);
    if (args.out.elements() == 0) return;
    if (matvec_.takes(args)) return matvec_.enqueue(args, stream);
    enqueue_before(args, stream);
    const Linear product = product_after(args);
    const bool better_gemm = gemm_may_win(product) && gemm_.has_measured(product);
    if (!better_gemm && matvec_.takes(product)) return matvec_.enqueue(product, stream);
    const bool few = product.weight.dtype == DType::f32 && product.out.shape[0] <= kMaxDotRows;
    if (!few && gemm_.enqueue(product, nvllm::cuda::native(stream))) return;
    dot(product, stream);
  }

  // Each power of two is measured, from the number of rows on that a gemm may be the fastest for.
  void tune(const Linear& args, Stream& stream) override {
    check_linear(args);
    if (args.out.elements() == 0) return;
    enqueue_before(args, stream);
    Linear part = product_after(args);
    const std::int64_t rows = args.out.shape[0];
    for (std::int64_t some = kMatvecMaxRows; some < 2 * rows; some *= 2) {
      part.x.shape[0] = part.out.shape[0] = part.residual.shape[0] = std::min(some, rows);
      if (part.out.shape[0] > kMatvecMaxRows || gemm_may_win(part)) {
        gemm_.tune(part, stream);
      }
    }
  }

 private:
  const Matvec matvec_;
  Gemm gemm_;
};

}  // namespace

std::unique_ptr<Matmul> create_matmul(Backend& backend) {
  return std::make_unique<CudaMatmul>(backend);
}

}  // namespace nvllm::kernels::cuda
