#include "kernels/moe/combine_experts.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/common/arguments.h"
#include "kernels/moe/backends.h"

namespace nvllm::kernels {

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

}  // namespace nvllm::kernels
