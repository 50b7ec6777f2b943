#include "runtime/runner/testing/own_rows_communicator.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "base/math.h"

namespace nvllm::runtime {
namespace {

constexpr unsigned char kVoid = 0x7b;  // poisons bytes that must not be read

}  // namespace

bool OwnRowsCommunicator::open_overlap(std::int64_t slot_rows, std::int64_t columns, DType dtype) {
  const std::size_t bytes =
      static_cast<std::size_t>(ipc::OverlappedRows::kSlots * slot_rows * columns) * size_of(dtype);
  for (Buffer* memory : {&sent_, &sums_of_rows_, &results_}) {
    *memory = backend_.allocate(MemoryKind::device, bytes, "test");
  }
  return true;
}

TensorView OwnRowsCommunicator::in(const Buffer& memory, ipc::OverlappedRows rows,
                                   const TensorView& like) const {
  const TensorView all(memory.data(), like.dtype, {rows.first_row + like.shape[0], like.shape[1]});
  REQUIRE(all.bytes() <= memory.bytes());
  return all.rows(rows.first_row, like.shape[0]);
}

void OwnRowsCommunicator::begin_reduce_scatter(ipc::OverlappedRows rows, TensorView x,
                                               Stream& stream) {
  TensorView& part = under_way_.at(static_cast<std::size_t>(rows.slot));
  REQUIRE(part.data == nullptr);
  part = x;
  backend_.copy(in(sent_, rows, x).data, x.data, x.bytes(), stream);
}

// The residual of rows that other ranks own is read where these ranks would have it.
void OwnRowsCommunicator::begin_all_gather(ipc::OverlappedRows rows, const kernels::RmsNorm& args,
                                           ipc::Gathered gathered, Stream& stream) {
  REQUIRE(under_way_.at(static_cast<std::size_t>(rows.slot)).data == args.x.data);
  const std::int64_t count = args.x.shape[0];
  const std::int64_t share = divide_up(count, size());
  const std::int64_t begin = std::min(rank() * share, count);
  const std::int64_t end = std::min(begin + share, count);
  const auto own = [&](TensorView tensor) { return tensor.rows(begin, end - begin); };
  const TensorView sums = in(sums_of_rows_, rows, args.x);

  // The sum of all ranks is gathered from its owners: zeros in rows that this rank does not own.
  backend_.fill(sums.data, 0, sums.bytes(), stream);
  if (begin < end) {
    backend_.copy(own(sums).data, own(args.residual).data, own(sums).bytes(), stream);
  }
  all_reduce(sums, stream);
  kernels::RmsNorm of_sent = args;
  of_sent.x = in(sent_, rows, args.x);
  of_sent.residual = sums;
  of_sent.out = in(results_, rows, args.x);
  all_reduce_rms_norm(of_sent, stream);
  if (gathered == ipc::Gathered::sum) {
    backend_.copy(of_sent.out.data, sums.data, sums.bytes(), stream);
  }
  backend_.fill(args.residual.data, kVoid, args.residual.bytes(), stream);
  if (begin < end) {
    backend_.copy(own(args.residual).data, own(sums).data, own(sums).bytes(), stream);
  }
  ++sums_;
}

TensorView OwnRowsCommunicator::finish_all_gather(ipc::OverlappedRows rows, Stream& /*stream*/) {
  const TensorView x = std::exchange(under_way_.at(static_cast<std::size_t>(rows.slot)), {});
  return in(results_, rows, x);
}

}  // namespace nvllm::runtime
