#include "kernels/moe/route.h"

#include <limits>

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
#ifdef NVLLM_CUDA
  if (stream.kind() == DeviceKind::cuda) return cuda::route(args, stream);
#endif
  cpu::route(args, stream);
}

}  // namespace nvllm::kernels
