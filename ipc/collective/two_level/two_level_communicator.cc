#include "ipc/collective/two_level/two_level_communicator.h"

#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace nvllm::ipc {

std::unique_ptr<TwoLevelCommunicator> TwoLevelCommunicator::create(Member& member, Backend& backend,
                                                                   int stages, int ranks_of_box,
                                                                   std::string& why) {
  const int boxes = member.size() / stages / ranks_of_box;
  auto in_box = PeerCommunicator::create(member, backend, stages, boxes, why);
  if (in_box == nullptr) return nullptr;
  return std::unique_ptr<TwoLevelCommunicator>(
      new TwoLevelCommunicator(member, backend, stages, std::move(in_box)));
}

TwoLevelCommunicator::TwoLevelCommunicator(Member& member, Backend& backend, int stages,
                                           std::unique_ptr<PeerCommunicator> in_box)
    : NcclCommunicator(member, backend, stages),
      in_box_(std::move(in_box)),
      boxes_(site_.size / in_box_->size()),
      between_(member,
               {.first = first_ + in_box_->rank(), .size = boxes_, .stride = in_box_->size()},
               stages) {
  // Connects the boxes, so that connection errors occur now and not in the first step.
  const auto stream = backend.create_stream();
  sum_over(between_, TensorView(token_.data(), DType::f32, {1}), *stream);
  wait(*stream);
}

TwoLevelCommunicator::~TwoLevelCommunicator() {
  // Memory of each part is freed once the work of all of them has ended.
  if (member_.group().aborted()) give_up();
}

void TwoLevelCommunicator::check() {
  try {
    in_box_->check();  // first, because it knows which rank is missing
    between_.check();
    NcclCommunicator::check();
  } catch (const Error& error) {
    member_.group().abort(error.what());  // only the first reason is stored
    give_up();
    throw;
  }
}

void TwoLevelCommunicator::give_up() {
  // Last the peer kernels, of which one that has timed out ends only now: NCCL should not send what
  // it has left (Links::holds_after_timeout).
  between_.give_up();
  NcclCommunicator::give_up();
  in_box_->give_up();
}

TwoLevelAlgorithm TwoLevelCommunicator::algorithm(const TensorView& data) const {
  if (forced_) return *forced_;
  return choose_two_level_algorithm(data.elements(), size_of(data.dtype), in_box_->size(), boxes_);
}

void TwoLevelCommunicator::all_reduce(TensorView data, Stream& stream) {
  check_all_reduce(site_, data, stream);
  begin(describe_call("all_reduce", data));
  if (data.elements() == 0) return;
  switch (algorithm(data)) {
    case TwoLevelAlgorithm::slices: return sum_slices(data, stream);
    case TwoLevelAlgorithm::every_rank:
      in_box_->all_reduce(data, stream);
      return sum_over(between_, data, stream);
    case TwoLevelAlgorithm::first_ranks:
      in_box_->all_reduce(data, stream);
      if (in_box_->rank() == 0) sum_over(between_, data, stream);
      return in_box_->broadcast(data, 0, stream);
  }
}

// In place: each rank's slice is its part of the data, as in in-place calls of the two collectives.
void TwoLevelCommunicator::sum_slices(TensorView data, Stream& stream) {
  NVLLM_CHECK(can_be_sliced(data.elements(), size_of(data.dtype), in_box_->size()),
              data.describe());
  const std::size_t bytes = data.bytes() / static_cast<std::size_t>(in_box_->size());
  std::byte* const begin = data.as<std::byte>() + static_cast<std::size_t>(in_box_->rank()) * bytes;
  const TensorView slice(begin, data.dtype, {data.elements() / in_box_->size()});
  in_box_->reduce_scatter(slice, data, stream);
  sum_over(between_, slice, stream);
  in_box_->all_gather(data, slice, stream);
}

}  // namespace nvllm::ipc
