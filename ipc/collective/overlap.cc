// all_reduce_rms_norm in three calls (communicator.h), without overlap.
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "ipc/collective/communicator.h"

namespace nvllm::ipc {

void Communicator::begin_reduce_scatter(OverlappedRows rows, TensorView x, Stream& /*stream*/) {
  TensorView& part = gathered_.at(static_cast<std::size_t>(rows.slot));
  NVLLM_CHECK(part.data == nullptr, "slot ", rows.slot, " is under way");
  part = x;
}

void Communicator::begin_all_gather(OverlappedRows rows, const kernels::RmsNorm& args,
                                    Gathered gathered, Stream& stream) {
  TensorView& result = gathered_.at(static_cast<std::size_t>(rows.slot));
  NVLLM_CHECK(result.data == args.x.data, args.x.describe(), " was not started");
  all_reduce_rms_norm(args, stream);
  result = gathered == Gathered::norm ? args.out : args.residual;
}

TensorView Communicator::finish_all_gather(OverlappedRows rows, Stream& /*stream*/) {
  return std::exchange(gathered_.at(static_cast<std::size_t>(rows.slot)), TensorView());
}

std::size_t overlap_bytes(int ranks, std::int64_t slot_rows, std::int64_t columns, DType dtype) {
  constexpr std::size_t kFlags = std::size_t{1} << 20;
  const std::int64_t of_others = (ranks - 1) * divide_up(slot_rows, ranks);
  return static_cast<std::size_t>(OverlappedRows::kSlots * (slot_rows + of_others) * columns) *
             size_of(dtype) +
         kFlags;
}

}  // namespace nvllm::ipc
