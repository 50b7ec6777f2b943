#include "ipc/collective/communicator.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/logging.h"
#include "ipc/collective/shm/shm_communicator.h"
#ifdef NVLLM_CUDA
#include "ipc/collective/nccl/nccl_communicator.h"
#include "ipc/collective/peer/peer_communicator.h"
#include "ipc/collective/two_level/two_level_communicator.h"
#include "ipc/stage_boxes.h"
#endif

namespace nvllm::ipc {
namespace {

[[noreturn]] void fail_unknown(const Backend& backend, const std::string& name, const char* known) {
  fail("no collectives called \"", name, "\" on ", name_of(backend.kind()), "; use ", known);
}

#ifdef NVLLM_CUDA
// Whether a pipeline stage has ranks on several boxes. Then the GPUs of no stage use peer memory
// alone, because all ranks must open it together.
bool stages_are_split(const std::vector<int>& box_ranks, int of_stage) {
  return std::ranges::any_of(box_ranks, [&](int ranks) { return ranks % of_stage != 0; });
}

std::unique_ptr<Communicator> create_cuda(Member& member, Backend& backend,
                                          const CommunicatorOptions& options) {
  const std::string& name = options.implementation;
  const int stages = options.stages;
  const auto nccl = [&] { return std::make_unique<NcclCommunicator>(member, backend, stages); };
  if (name != "auto" && name != "peer" && name != "nccl" && name != "two-level") {
    fail_unknown(backend, name, "auto, peer, nccl or two-level");
  }
  std::vector<int> box_ranks;
  for (int box = 0; box < member.group().boxes(); ++box) {
    box_ranks.push_back(member.group().ranks_of(box));
  }
  std::string why;
  std::optional<int> ranks_of_box;  // nullopt: not in two levels
  if (name == "auto" || name == "two-level") {
    ranks_of_box = two_level_ranks(box_ranks, stages, why);
  }
  if (name == "two-level" && !ranks_of_box) fail("no two-level collectives: ", why, "; use auto");
  const bool split = stages_are_split(box_ranks, member.size() / stages);
  if (name == "nccl" || (name == "auto" && split && !ranks_of_box)) return nccl();

  std::unique_ptr<Communicator> opened;
  if (ranks_of_box) {
    opened = TwoLevelCommunicator::create(member, backend, stages, *ranks_of_box, why);
  } else {
    opened = PeerCommunicator::create(member, backend, stages, 1, why);
  }
  if (opened != nullptr) return opened;
  if (name != "auto") fail("no peer memory: ", why, "; use auto or nccl");
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
