// The checks of a mixture's operations, and the choice of a backend.
#include "kernels/moe/moe.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/moe/backends.h"

namespace nvllm::kernels {

void check_route(const Route& args) {
  constexpr Arguments check("route");
  check.require_floats(args.logits, "logits", 2, "[rows, experts]");
  const std::int64_t rows = args.logits.shape[0], experts = args.logits.shape[1];
  check.require_dense(args.logits, "logits", DType::f32, {rows, experts});
  if (experts < 1 || experts > kMaxExperts) {
    fail("route: logits is ", args.logits.describe(), "; there must be 1 to ", kMaxExperts,
         " experts");
  }
  const std::int64_t k = args.weights.rank == 2 ? args.weights.shape[1] : 0;
  if (k < 1 || k > experts) {
    fail("route: weights is ", args.weights.describe(), "; it must be [rows, k] with k from 1 to ",
         experts, ", the number of experts");
  }
  if (rows > std::numeric_limits<std::int32_t>::max() / k) {
    fail("route: ", rows, " rows for ", k, " experts each are more than int32 counts");
  }
  check.require_dense(args.weights, "weights", DType::f32, {rows, k});
  check.require_dense(args.expert_start, "expert_start", DType::i32, {experts + 1});
  check.require_dense(args.source_rows, "source_rows", DType::i32, {rows * k});
  check.require_dense(args.entries, "entries", DType::i32, {rows, k});
  if (args.scales.data == nullptr) return;
  check.require_floats(args.scales, "scales", 1, "[experts]");
  check.require_dense(args.scales, "scales", args.scales.dtype, {experts});
}

void route(const Route& args, Stream& stream) {
  check_route(args);
  NVLLM_ON_BACKEND(stream, route(args, stream));
}

void check_combine_experts(const CombineExperts& args) {
  constexpr Arguments check("combine_experts");
  check.require_floats(args.out, "out", 2, "[rows, columns]");
  check.require_dense(args.out, "out");
  const std::int64_t rows = args.out.shape[0], columns = args.out.shape[1];
  const std::int64_t k = args.weights.rank == 2 ? args.weights.shape[1] : 0;
  if (k < 1) {
    fail("combine_experts: weights is ", args.weights.describe(),
         "; it must be [rows, k] with k from 1 on");
  }
  check.require_dense(args.weights, "weights", DType::f32, {rows, k});
  check.require_dense(args.entries, "entries", DType::i32, {rows, k});
  const bool mixed = args.out.dtype == DType::f32 && args.residual.data == nullptr;
  const DType type = mixed ? args.experts.dtype : args.out.dtype;
  check.require_floats(args.experts, "experts", 2, "[rows * k, columns]");
  const std::int64_t entries = std::max(rows * k, args.experts.shape[0]);
  check.require_dense(args.experts, "experts", type, {entries, columns});
  if (args.residual.data != nullptr) {
    check.require_dense(args.residual, "residual", args.out.dtype, {rows, columns});
  }
  if (args.own_start.data != nullptr) {
    const std::int64_t starts = args.own_start.rank == 1 ? args.own_start.shape[0] : 0;
    if (starts < 1) {
      fail("combine_experts: own_start is ", args.own_start.describe(),
           "; it must be int32 [own experts + 1]");
    }
    check.require_dense(args.own_start, "own_start", DType::i32, {starts});
  }
  if (args.shared.data != nullptr) {
    check.require_dense(args.shared, "shared", type, {rows, columns});
    check.require_dense(args.shared_gate, "shared_gate", DType::f32, {rows, 1});
  }
}

void combine_experts(const CombineExperts& args, Stream& stream) {
  check_combine_experts(args);
  if (args.out.elements() == 0) return;
  NVLLM_ON_BACKEND(stream, combine_experts(args, stream));
}

namespace {

void check_single_token_moe(const SingleTokenMoe& args) {
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
  check_single_token_moe(args);
  NVLLM_CHECK(takes_single_token(stream.kind(), args), "single_token_moe of a backend without it");
#ifdef NVLLM_CUDA
  cuda::single_token_moe(args, stream);
#endif
}

}  // namespace nvllm::kernels
