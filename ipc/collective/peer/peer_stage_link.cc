#include "ipc/collective/peer/peer_stage_link.h"

#include <new>

#include "base/check.h"
#include "base/error.h"
#include "device/cuda/stream.h"
#include "ipc/collective/culprit.h"
#include "ipc/collective/peer/hand_over_kernels.h"
#include "ipc/collective/peer/ipc_exchange.h"
#include "ipc/rank_memory_map.h"

namespace nvllm::ipc {
namespace {

constexpr int kNobody = StageMap::kNobody;

std::byte* at(void* data, std::size_t bytes) {
  return static_cast<std::byte*>(data) + bytes;
}

}  // namespace

std::unique_ptr<PeerStageLink> PeerStageLink::create(Member& member, Backend& backend, int stages,
                                                     CudaCommunicator& communicator,
                                                     std::string& why) {
  std::unique_ptr<PeerStageLink> link(new PeerStageLink(member, backend, stages, communicator));
  link->open_neighbours(why);
  if (!why.empty()) return nullptr;
  communicator.set_beside(link.get());
  return link;
}

PeerStageLink::PeerStageLink(Member& member, Backend& backend, int stages,
                             CudaCommunicator& communicator)
    : member_(member),
      backend_(backend),
      communicator_(communicator),
      stages_(stages),
      next_(StageMap{member.size(), stages}.next_of(member.rank())),
      previous_(StageMap{member.size(), stages}.previous_of(member.rank())),
      results_(member, stages, DeviceKind::cuda) {}

PeerStageLink::~PeerStageLink() {
  communicator_.set_beside(nullptr);
  for (void* opened : opened_) {
    if (opened != nullptr) cudaIpcCloseMemHandle(opened);
  }
}

void PeerStageLink::open_neighbours(std::string& why) {
  // All of this must precede the exchange of handles, after which other ranks may write to the
  // memory: so it is cleared here.
  cudaIpcMemHandle_t handle{};
  std::string error = error_of([&] {
    const std::size_t bytes = peer::link_box_bytes(previous_ != kNobody);
    box_ = backend_.allocate(MemoryKind::device, bytes, "hand-over between stages");
    control_ = backend_.allocate(MemoryKind::device, sizeof(peer::LinkControl),
                                 "hand-over between stages");
    report_ =
        backend_.allocate(MemoryKind::pinned, sizeof(peer::LinkReport), "hand-over between stages");
    new (report_.data()) peer::LinkReport;
    const auto stream = backend_.create_stream();
    backend_.fill(control_.data(), 0, sizeof(peer::LinkControl), *stream);
    backend_.fill(box_.data(), 0, peer::kLinkHeadBytes, *stream);
    stream->synchronize();
    cuda::check(cudaIpcGetMemHandle(&handle, box_.data()), "sharing memory through CUDA IPC");
  });
  const auto handles = exchange_handles(member_, handle, error);
  const auto open = [&](int rank, void*& opened) {
    if (rank == kNobody || !handles[static_cast<std::size_t>(rank)]) return;  // or it had an error
    opened = open_memory(rank, *handles[static_cast<std::size_t>(rank)]);
  };
  if (error.empty()) {
    error = error_of([&] {
      open(next_, opened_[0]);
      open(previous_, opened_[1]);
    });
  }
  why = first_error(member_, error);
  link_ = {.own = static_cast<unsigned char*>(box_.data()),
           .next = static_cast<unsigned char*>(opened_[0]),
           .previous = static_cast<unsigned char*>(opened_[1]),
           .control = static_cast<peer::LinkControl*>(control_.data()),
           .report = static_cast<peer::LinkReport*>(report_.data()),
           .deadline_ns = static_cast<std::uint64_t>(member_.group().step_timeout().count())};
}

void PeerStageLink::send(TensorView data, Stream& stream) {
  NVLLM_CHECK(data.contiguous() && next_ != kNobody, data.describe());
  check();
  member_.check_abort();
  peer::for_each_piece(data.bytes(), [&](std::size_t offset, std::size_t bytes) {
    peer::launch_send_piece(link_, at(data.data, offset), bytes, data.bytes(),
                            cuda::native(stream));
  });
}

void PeerStageLink::receive(TensorView data, Stream& stream) {
  NVLLM_CHECK(data.contiguous() && previous_ != kNobody, data.describe());
  check();
  member_.check_abort();
  peer::for_each_piece(data.bytes(), [&](std::size_t offset, std::size_t bytes) {
    peer::launch_receive_piece(link_, at(data.data, offset), bytes, data.bytes(),
                               cuda::native(stream));
  });
}

void PeerStageLink::send_result(TensorView data, const Event& ready) {
  check();
  results_.send_result(data, ready);
}

void PeerStageLink::receive_result(void* to, std::size_t bytes) {
  check();
  results_.receive_result(to, bytes);
}

bool PeerStageLink::has_failed() const {
  return __atomic_load_n(&report().state, __ATOMIC_ACQUIRE) != peer::LinkReport::none;
}

void PeerStageLink::check() {
  if (!has_failed()) return;
  const peer::LinkReport& failure = report();
  const int peer = failure.sends != 0 ? next_ : previous_;
  if (failure.state == peer::LinkReport::mismatched) {
    fail("rank ", peer, " hands over ", failure.bytes, " bytes, and rank ", member_.rank(),
         " expects ", failure.expected, "; enqueue the same steps on all stages");
  }
  if (failure.state == peer::LinkReport::aborted) {
    member_.check_abort();
    fail("this link between stages was aborted");
  }
  const int culprit = find_culprit(member_.group(), member_.rank(), peer, stages_);
  const double seconds = std::chrono::duration<double>(member_.group().step_timeout()).count();
  throw PeerTimeout(
      culprit, str("waited ", format_duration(seconds), " on the GPU for rank ", peer,
                   failure.sends != 0 ? " to take hidden states" : "'s hidden states", " (piece ",
                   failure.piece, "); to blame is ", member_.group().snapshot(culprit).describe()));
}

void PeerStageLink::give_up() {
  __atomic_store_n(&report().abort, 1u, __ATOMIC_SEQ_CST);
}

}  // namespace nvllm::ipc
