#include "ipc/collective/stage_link.h"

#include "base/check.h"
#include "base/error.h"
#include "base/logging.h"
#include "ipc/collective/shm/shm_stage_link.h"
#ifdef NVLLM_CUDA
#include "ipc/collective/nccl/nccl_stage_link.h"
#include "ipc/collective/peer/peer_stage_link.h"
#endif

namespace nvllm::ipc {
#ifdef NVLLM_CUDA
namespace {

std::unique_ptr<StageLink> create_cuda(Member& member, Backend& backend,
                                       const CommunicatorOptions& options,
                                       CudaCommunicator& communicator) {
  const int stages = options.stages;
  if (options.implementation != "nccl" && member.group().boxes() == 1) {
    std::string why;
    if (auto link = PeerStageLink::create(member, backend, stages, communicator, why)) return link;
    if (options.implementation == "peer") {
      fail("--pp ", stages, ": no peer memory: ", why, "; use auto or nccl");
    }
    if (member.rank() == 0) log_info("hidden states go through NCCL, no peer memory: ", why);
  }
  return NcclStageLink::create(member, backend, stages, communicator);
}

}  // namespace
#endif

std::unique_ptr<StageLink> create_stage_link(Member& member, Backend& backend,
                                             const CommunicatorOptions& options,
                                             [[maybe_unused]] Communicator& communicator) {
  const int stages = options.stages;
  NVLLM_CHECK(stages > 1 && member.size() % stages == 0, member.size(), " ranks in ", stages,
              " stages");
#ifdef NVLLM_CUDA
  if (backend.kind() == DeviceKind::cuda) {
    return create_cuda(member, backend, options, dynamic_cast<CudaCommunicator&>(communicator));
  }
#endif
  NVLLM_CHECK(backend.kind() == DeviceKind::cpu, "a link of ", name_of(backend.kind()));
  return std::make_unique<ShmStageLink>(member, stages);
}

}  // namespace nvllm::ipc
