#include "kernels/moe/single_token_moe.h"

#include "base/check.h"
#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/moe/backends.h"
#include "kernels/moe/route.h"

namespace nvllm::kernels {
namespace {

void check_single_token(const SingleTokenMoe& args) {
  constexpr Arguments check("single_token_moe");
  check.require_floats(args.out, "out", 2, "[1, columns]");
  const DType type = args.out.dtype;
  const std::int64_t columns = args.out.shape[1];
  const std::int64_t experts = args.logits.rank == 2 ? args.logits.shape[1] : 0;
  check.require_dense(args.out, "out", type, {1, columns});
  check.require_dense(args.x, "x", type, {1, columns});
  check.require_dense(args.logits, "logits", DType::f32, {1, experts});
  if (args.k < 1 || args.k > experts || experts > kMaxExperts) {
    fail("single_token_moe: k is ", args.k, " of ", experts, " experts; it must be from 1 to ",
         experts, ", of ", kMaxExperts, " experts at most");
  }
  const std::int64_t inner = args.down.inputs();
  if (args.gate_up.inputs() != columns || args.gate_up.outputs() != experts * 2 * inner ||
      args.down.outputs() != experts * columns || args.gate_up.type() != type ||
      args.down.type() != type) {
    fail("single_token_moe: gate_up is ", args.gate_up.values.describe(), " and down ",
         args.down.values.describe(), "; they must be of ", experts, " experts and ", columns,
         " columns");
  }
  check.require_dense(args.activated, "activated", type, {args.k, inner});
  if (args.norm_weight.data != nullptr)
    check.require_dense(args.norm_weight, "norm_weight", type, {columns});
  if (args.residual.data != nullptr)
    check.require_dense(args.residual, "residual", type, {1, columns});
  if (args.shared.data == nullptr) return;
  check.require_dense(args.shared, "shared", type, {1, columns});
  check.require_dense(args.shared_gate, "shared_gate", DType::f32, {1, 1});
}

}  // namespace

bool takes_single_token(DeviceKind device, const SingleTokenMoe& args) {
#ifdef NVLLM_CUDA
  if (device == DeviceKind::cuda) return cuda::takes_single_token(args);
#endif
  static_cast<void>(device), static_cast<void>(args);
  return false;
}

void single_token_moe(const SingleTokenMoe& args, Stream& stream) {
  check_single_token(args);
  NVLLM_CHECK(takes_single_token(stream.kind(), args), "single_token_moe of a backend without it");
#ifdef NVLLM_CUDA
  cuda::single_token_moe(args, stream);
#endif
}

}  // namespace nvllm::kernels
