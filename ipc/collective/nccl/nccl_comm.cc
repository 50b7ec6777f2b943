#include "ipc/collective/nccl/nccl_comm.h"

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread.h"
#include "device/libraries.h"
#include "ipc/collective/culprit.h"

namespace nvllm::ipc {
namespace {

// How long a communicator waits for its peers in a normal shutdown.
constexpr Nanoseconds kFinalizeLimit = std::chrono::seconds(2);
// How long a launcher may need to report why a peer's connection ended.
constexpr Nanoseconds kReasonLimit = std::chrono::seconds(1);

// The first rank of each communicator creates its id. All ranks exchange whether they could load
// NCCL, so that either all fail or none.
ncclUniqueId agree_on_id(Member& member, int first) {
  // NVLink multicast has cost hosts their GPUs. A setting of the user takes precedence.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  ncclUniqueId id{};
  std::string problem;
  if (const char* error = load_nccl()) {
    problem = str("NCCL cannot be loaded: ", error, "; install libnccl.so.2");
  } else if (member.rank() == first) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) problem = str("NCCL gave no id: ", ncclGetErrorString(result));
  }
  std::vector<std::byte> mine(1 + sizeof(id));
  if (problem.empty()) {
    std::memcpy(mine.data() + 1, &id, sizeof(id));
  } else {
    problem.resize(std::min(problem.size(), Member::kExchangeBytes - 1));
    mine.resize(1 + problem.size());
    mine[0] = std::byte{1};
    std::memcpy(mine.data() + 1, problem.data(), problem.size());
  }
  const auto all = member.exchange(mine, "its part of NCCL's start");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].at(0) == std::byte{0}) continue;
    fail("rank ", rank, ": ",
         std::string_view(reinterpret_cast<const char*>(all[rank].data()) + 1,
                          all[rank].size() - 1));
  }
  std::memcpy(&id, all[static_cast<std::size_t>(first)].data() + 1, sizeof(id));
  return id;
}

// Connected ranks notice first that a rank has died; which one and how is reported by its launcher.
void await_reason(const Member& member) {
  const std::int64_t end = now_ns() + kReasonLimit.count();
  do {
    member.check_abort();
    usleep(1000);
  } while (now_ns() < end);
}

}  // namespace

NcclComm::NcclComm(Member& member, const Ranks& ranks, int stages)
    : member_(member), stages_(stages) {
  start(agree_on_id(member, ranks.first), ranks);
}

void NcclComm::start(const ncclUniqueId& id, const Ranks& ranks) {
  const Member::ActivityScope doing(member_, Member::Activity::call, "start of NCCL");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    const int rank = (member_.rank() - ranks.first) / ranks.stride;
    finish(ncclCommInitRankConfig(&comm_, ranks.size, id, rank, &config), "starting NCCL");
  } catch (...) {
    if (comm_ != nullptr) ncclCommAbort(comm_);  // also frees it
    throw;
  }
}

NcclComm::~NcclComm() {
  if (comm_ == nullptr) return;
  try {
    member_.check_abort();
    finish(ncclCommFinalize(comm_), "ending NCCL", kFinalizeLimit);
    ncclCommDestroy(comm_);
  } catch (const Error&) {  // a peer is gone
    give_up();
  }
}

void NcclComm::fail_nccl(ncclResult_t result, const char* what) const {
  if (result == ncclRemoteError || result == ncclSystemError) await_reason(member_);
  const char* const detail = ncclGetLastError(comm_);
  const char* const fix =
      member_.group().boxes() == 1
          ? ""
          : "; NCCL_DEBUG=INFO shows which network NCCL takes between the boxes, and "
            "NCCL_SOCKET_IFNAME or NCCL_IB_HCA chooses another";
  fail(what, " failed: ", ncclGetErrorString(result),
       detail != nullptr && *detail != 0 ? str(" (", detail, ")") : "", fix);
}

void NcclComm::finish(ncclResult_t result, const char* what) {
  finish(result, what, member_.group().step_timeout());
}

void NcclComm::finish(ncclResult_t result, const char* what, Nanoseconds limit) {
  if (result == ncclSuccess) return;
  WaitClock clock(limit, now_ns());
  while (result == ncclInProgress) {
    member_.check_abort();
    clock.look(now_ns());
    if (clock.expired()) {
      const int peer =
          find_culprit(member_.group(), member_.rank(), RankSnapshot::kNobody, stages_);
      throw PeerTimeout(
          peer, str(what, " did not end; to blame is ", member_.group().snapshot(peer).describe()));
    }
    sched_yield();
    const ncclResult_t query = ncclCommGetAsyncError(comm_, &result);
    if (query != ncclSuccess) result = query;
  }
  if (result != ncclSuccess) fail_nccl(result, what);
}

void NcclComm::check() {
  if (comm_ == nullptr) {
    member_.check_abort();
    fail("this communicator was aborted");
  }
  ncclResult_t state = ncclSuccess;
  const ncclResult_t query = ncclCommGetAsyncError(comm_, &state);
  if (query != ncclSuccess) state = query;
  if (state != ncclSuccess && state != ncclInProgress) fail_nccl(state, "NCCL's work");
}

// ncclCommAbort() also frees the communicator, and waits until the GPU is idle for that.
void NcclComm::give_up() {
  ncclComm_t const comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return;
  try {
    ending_ = start_thread<std::jthread>("to end NCCL with", [comm] { ncclCommAbort(comm); });
  } catch (const Error&) {  // no thread could be started
    ncclCommAbort(comm);
  }
}

}  // namespace nvllm::ipc
