// Products on the GPU: which of the ways there are takes which.
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cuda/stream.h"
#include "kernels/gemm/linear_before.h"
#include "kernels/gemm/sm80/dot.h"
#include "kernels/gemm/sm80/gemm.h"
#include "kernels/gemm/sm80/linear.h"
#include "kernels/gemm/sm80/matvec.h"
#include "kernels/gemm/sm90/head.h"
#include "kernels/gemm/sm90/skinny.h"
#include "kernels/pointwise/backends.h"

namespace nvllm::kernels::cuda {
namespace {

// Without tensor cores, up to so many rows are faster when each row reads the weights itself.
constexpr std::int64_t kMaxDotRows = 4;

// enqueue_before() of a product that has inputs and comes early (launch.cuh).
void enqueue_early_before(const Linear& args, Stream& stream) {
  if (args.before == Linear::Before::rms_norm) rms_norm(norm_before(args), stream, true);
  if (args.before == Linear::Before::gated_activation) {
    gated_activation(activation_before(args), stream, true);
  }
}

class CudaMatmul final : public Matmul {
 public:
  explicit CudaMatmul(Backend& backend) : gemm_(backend) {}

  void linear(const Linear& args, Stream& stream) override {
    check_linear(args);
    if (args.out.elements() == 0) return;
    NVLLM_CHECK(!kernels::begins_norm(args) || begins_norm(args), "no norm can be begun here");
    if (matvec_.takes(args)) return matvec_.enqueue(args, stream);
    if (norm_is_begun(args)) {
      const Linear half = rest_of_norm(args);
      if (const auto plan = skinny_.plan(half)) return skinny_.enqueue(half, *plan, stream);
    }
    const Linear rest = rest_after(args);
    if (head_.takes(rest)) {
      enqueue_early_before(args, stream);
      return head_.enqueue(rest, stream);
    }
    std::optional<SkinnyPlan> plan = skinny_.plan(rest);
    const bool fused =
        plan.has_value() || matvec_.takes(rest) || args.after == Linear::After::nothing;
    const Linear product = fused ? rest : product_after(args);
    if (!fused) plan = skinny_.plan(product);
    if (plan || (matvec_.takes(product) && matvec_.asks_for_all(product))) {
      enqueue_early_before(args, stream);
    } else {
      enqueue_before(args, stream);
    }
    if (plan) {
      skinny_.enqueue(product, *plan, stream);
    } else {
      enqueue_product(product, stream);
    }
    if (!fused) enqueue_after(args, stream);
  }

  bool fuses_after(const Linear& args) override {
    if (args.after == Linear::After::nothing) return false;
    const Linear rest = rest_after(args);
    return matvec_.takes(rest) || skinny_.plan(rest).has_value();
  }

  bool begins_norm(const Linear& args) override {
    if (args.before != Linear::Before::nothing || args.after != Linear::After::nothing)
      return false;
    return args.out.dtype == args.weight.dtype && !matvec_.takes(args) &&
           skinny_.plan(args).has_value();
  }

  bool draw(const Linear& product, const SampleTokens& draw, Stream& stream) override {
    check_linear(product);
    check_sample_tokens(draw);
    NVLLM_CHECK(draw.rows.logits.data == product.out.data, "other logits");
    const Linear rest = rest_after(product);
    if (product.out.elements() == 0 || !head_.takes(rest) || !head_.draws(draw)) return false;
    enqueue_early_before(product, stream);
    head_.enqueue(rest, draw, stream);
    return true;
  }

  void tune(std::span<const Linear> alike, Stream& stream) override {
    for (const Linear& args : alike) check_linear(args);
    if (alike.front().out.elements() == 0) return;
    std::vector<Linear> products;
    for (const Linear& args : alike) products.push_back(product_after(args));
    const Linear rest = rest_after(alike.front());
    if (skinny_.plan(rest) || head_.takes(rest) || matvec_.takes(products.front())) return;
    for (const Linear& args : alike) enqueue_before(args, stream);
    gemm_.tune(products, stream);
  }

  ProductChoices choices() const override { return gemm_.choices(); }
  void adopt(ProductChoices choices) override { gemm_.adopt(std::move(choices)); }
  std::size_t known() override { return gemm_.known(); }

 private:
  // Of what has nothing before it and nothing after it.
  void enqueue_product(const Linear& product, Stream& stream) {
    if (matvec_.takes(product)) return matvec_.enqueue(product, stream);
    const bool few = product.weight.dtype == DType::f32 && product.out.shape[0] <= kMaxDotRows;
    if (!few && gemm_.enqueue(product, nvllm::cuda::native(stream))) return;
    dot(product, stream);
  }

  const Matvec matvec_;
  const Skinny skinny_;
  const Head head_;
  Gemm gemm_;
};

}  // namespace

std::unique_ptr<Matmul> create_matmul(Backend& backend) {
  return std::make_unique<CudaMatmul>(backend);
}

}  // namespace nvllm::kernels::cuda
