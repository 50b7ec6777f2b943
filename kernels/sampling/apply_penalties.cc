#include "kernels/sampling/apply_penalties.h"

#include <algorithm>

#include "kernels/common/arguments.h"
#include "kernels/sampling/backends.h"
#include "kernels/sampling/operations.h"

namespace nvllm::kernels {

void check_apply_penalties(const ApplyPenalties& args) {
  constexpr Arguments check("apply_penalties");
  check_sampling_rows(args.rows, check.operation());
  const std::int64_t slots = args.rows.params.shape[0];
  check.require_dense(args.lists, "lists", DType::i32, {slots, args.lists.shape[1]});
  const std::int64_t allowed = std::max(args.allowed.shape[1], (args.rows.own() + 31) / 32);
  check.require_dense(args.allowed, "allowed", DType::i32, {slots, allowed});
  check.require_dense(args.history, "history", DType::i32,
                      {args.history.shape[0], args.history.shape[1]});
  check.require(args.block_table, "block_table", DType::i32,
                {args.rows.rows(), args.block_table.shape[1]});
}

void apply_penalties(const ApplyPenalties& args, Stream& stream) {
  check_apply_penalties(args);
  if (args.rows.rows() == 0) return;
  NVLLM_ON_BACKEND(stream, apply_penalties(args, stream));
}

}  // namespace nvllm::kernels
