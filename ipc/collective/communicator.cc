#include "ipc/collective/communicator.h"

#include "base/check.h"
#include "base/error.h"
#include "base/logging.h"
#include "ipc/collective/shm/shm_communicator.h"
#ifdef NVLLM_CUDA
#include "ipc/collective/nccl/nccl_communicator.h"
#include "ipc/collective/peer/peer_communicator.h"
#endif

namespace nvllm::ipc {
namespace {

[[noreturn]] void fail_unknown(const Backend& backend, const std::string& name, const char* known) {
  fail("no collectives called \"", name, "\" on ", name_of(backend.kind()), "; use ", known);
}

#ifdef NVLLM_CUDA
// Whether a pipeline stage has ranks on several boxes. Then the GPUs of no stage use peer memory,
// because all ranks must open it together.
bool stages_are_split(const Group& group, int stages) {
  const int of_stage = group.size() / stages;
  for (int box = 0; box < group.boxes(); ++box) {
    if (group.ranks_of(box) % of_stage != 0) return true;
  }
  return false;
}

std::unique_ptr<Communicator> create_cuda(Member& member, Backend& backend,
                                          const CommunicatorOptions& options) {
  const std::string& name = options.implementation;
  const auto nccl = [&] {
    return std::make_unique<NcclCommunicator>(member, backend, options.stages);
  };
  if (name != "auto" && name != "peer" && name != "nccl") {
    fail_unknown(backend, name, "auto, peer or nccl");
  }
  if (name == "nccl" || (name == "auto" && stages_are_split(member.group(), options.stages))) {
    return nccl();
  }
  std::string why;
  if (auto peer = PeerCommunicator::create(member, backend, options.stages, why)) {
    return peer;
  }
  if (name == "peer") fail("no peer memory: ", why, "; use auto or nccl");
  if (member.rank() == 0) log_info("collectives go through NCCL, no peer memory: ", why);
  return with_context(str("no peer memory (", why, "), so NCCL is needed"), nccl);
}
#endif

}  // namespace

std::unique_ptr<Communicator> create_communicator(Member& member, Backend& backend,
                                                  const CommunicatorOptions& options) {
  NVLLM_CHECK(options.stages > 0 && member.size() % options.stages == 0, member.size(),
              " ranks in ", options.stages, " stages");
#ifdef NVLLM_CUDA
  if (backend.kind() == DeviceKind::cuda) return create_cuda(member, backend, options);
#endif
  if (options.implementation != "auto" && options.implementation != "shm") {
    fail_unknown(backend, options.implementation, "auto or shm");
  }
  return std::make_unique<ShmCommunicator>(member, options.stages);
}

}  // namespace nvllm::ipc
