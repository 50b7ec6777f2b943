#include "ipc/collective/communicator.h"

#include "base/error.h"
#include "base/logging.h"
#include "ipc/collective/shm_communicator.h"
#ifdef NVLLM_CUDA
#include "ipc/collective/auto_communicator.h"
#endif

namespace nvllm::ipc {
namespace {

[[noreturn]] void fail_unknown(const Backend& backend, const std::string& name, const char* known) {
  fail("no collectives called \"", name, "\" on ", name_of(backend.kind()), "; use ", known);
}

#ifdef NVLLM_CUDA
std::unique_ptr<Communicator> create_cuda(Member& member, Backend& backend,
                                          const std::string& name) {
  if (name != "auto" && name != "peer" && name != "nccl") {
    fail_unknown(backend, name, "auto, peer or nccl");
  }
  std::unique_ptr<NcclCommunicator> nccl;
  if (name == "nccl" || (name == "auto" && member.size() > 1)) {
    nccl = std::make_unique<NcclCommunicator>(member, backend);
  }
  std::string why;
  std::unique_ptr<PeerCommunicator> peer;
  if (name != "nccl") peer = PeerCommunicator::create(member, backend, why);  // while NCCL starts
  if (nccl != nullptr) nccl->await_start();
  if (name == "nccl") return nccl;
  if (peer == nullptr && name == "peer") fail("no peer memory: ", why, "; use auto or nccl");
  if (nccl == nullptr) return peer;
  if (peer == nullptr) {
    if (member.rank() == 0) log_info("collectives go through NCCL alone, no peer memory: ", why);
    return nccl;
  }
  return std::make_unique<AutoCommunicator>(member, std::move(peer), std::move(nccl));
}
#endif

}  // namespace

std::unique_ptr<Communicator> create_communicator(Member& member, Backend& backend,
                                                  const CommunicatorOptions& options) {
#ifdef NVLLM_CUDA
  if (backend.kind() == DeviceKind::cuda) {
    return create_cuda(member, backend, options.implementation);
  }
#endif
  if (options.implementation != "auto" && options.implementation != "shm") {
    fail_unknown(backend, options.implementation, "auto or shm");
  }
  return std::make_unique<ShmCommunicator>(member);
}

}  // namespace nvllm::ipc
