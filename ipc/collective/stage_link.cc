#include "ipc/collective/stage_link.h"

#include "base/check.h"
#include "base/error.h"
#include "ipc/collective/shm/shm_stage_link.h"
#ifdef NVLLM_CUDA
#include "ipc/collective/peer/peer_stage_link.h"
#endif

namespace nvllm::ipc {

std::unique_ptr<StageLink> create_stage_link(Member& member, Backend& backend, int stages,
                                             [[maybe_unused]] Communicator& communicator) {
  NVLLM_CHECK(stages > 1 && member.size() % stages == 0, member.size(), " ranks in ", stages,
              " stages");
#ifdef NVLLM_CUDA
  if (backend.kind() == DeviceKind::cuda) {
    std::string why;
    auto& of_stage = dynamic_cast<CudaCommunicator&>(communicator);
    if (auto link = PeerStageLink::create(member, backend, stages, of_stage, why)) return link;
    fail("--pp ", stages, ": the GPUs do not see each other's memory (", why, "); pass --pp 1");
  }
#endif
  NVLLM_CHECK(backend.kind() == DeviceKind::cpu, "a link of ", name_of(backend.kind()));
  return std::make_unique<ShmStageLink>(member, stages);
}

}  // namespace nvllm::ipc
