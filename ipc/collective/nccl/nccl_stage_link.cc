#include "ipc/collective/nccl/nccl_stage_link.h"

#include "base/check.h"
#include "device/cuda/stream.h"
#include "ipc/rank_memory_map.h"

namespace nvllm::ipc {

std::unique_ptr<NcclStageLink> NcclStageLink::create(Member& member, Backend& backend, int stages,
                                                     CudaCommunicator& communicator) {
  std::unique_ptr<NcclStageLink> link(new NcclStageLink(member, backend, stages, communicator));
  communicator.set_beside(link.get());
  link->connect();
  return link;
}

NcclStageLink::NcclStageLink(Member& member, Backend& backend, int stages,
                             CudaCommunicator& communicator)
    : member_(member),
      backend_(backend),
      communicator_(communicator),
      next_(StageMap{member.size(), stages}.next_of(member.rank())),
      previous_(StageMap{member.size(), stages}.previous_of(member.rank())),
      results_(member, stages, DeviceKind::cuda),
      comm_(member, {.first = 0, .size = member.size()}, stages) {}

NcclStageLink::~NcclStageLink() {
  // Its memory is freed once the communicator's work has ended, too.
  if (member_.group().aborted()) communicator_.give_up_all();
  communicator_.set_beside(nullptr);
}

void NcclStageLink::connect() {
  constexpr std::int64_t kBytes = 256;
  const Buffer memory = backend_.allocate(MemoryKind::device, kBytes, "hand-over between stages");
  const TensorView data(memory.data(), DType::u8, {kBytes});
  const auto stream = backend_.create_stream();
  backend_.fill(data.data, 0, data.bytes(), *stream);
  if (previous_ != StageMap::kNobody) receive(data, *stream);
  if (next_ != StageMap::kNobody) send(data, *stream);
  communicator_.wait(*stream);
}

void NcclStageLink::send(TensorView data, Stream& stream) {
  NVLLM_CHECK(data.contiguous() && next_ != StageMap::kNobody, data.describe());
  member_.check_abort();
  check();
  comm_.finish(
      ncclSend(data.data, data.bytes(), ncclUint8, next_, comm_.get(), cuda::native(stream)),
      "NCCL's send to the next stage");
}

void NcclStageLink::receive(TensorView data, Stream& stream) {
  NVLLM_CHECK(data.contiguous() && previous_ != StageMap::kNobody, data.describe());
  member_.check_abort();
  check();
  comm_.finish(
      ncclRecv(data.data, data.bytes(), ncclUint8, previous_, comm_.get(), cuda::native(stream)),
      "NCCL's receive from the stage before");
}

void NcclStageLink::send_result(TensorView data, const Event& ready) {
  member_.check_abort();
  check();
  results_.send_result(data, ready);
}

void NcclStageLink::receive_result(void* to, std::size_t bytes) {
  member_.check_abort();
  check();
  results_.receive_result(to, bytes);
}

}  // namespace nvllm::ipc
