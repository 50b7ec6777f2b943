// Runs workers for commands: plan_launch() decides which ones, run_workers() starts and stops them,
// and ask_rank0() communicates with them. EngineSession (launcher/session) does the same for an
// engine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "device/backend.h"
#include "ipc/rpc.h"
#include "launcher/cli/options.h"
#include "launcher/supervise/worker_group.h"
#include "runtime/worker/worker.h"

namespace nvllm::launcher {

// Which workers to start.
struct LaunchPlan {
  DeviceKind device = DeviceKind::cpu;
  int ranks = 1;               // in all boxes and pipeline stages
  std::vector<int> box_ranks;  // on each box, if there are several
  // CUDA_VISIBLE_DEVICES of each rank; "" for ranks on other boxes. Empty on the CPU.
  std::vector<std::string> gpus;
};

// Finds the GPUs of this machine (visible_gpus() of device/topology.h). Called only if they may be
// needed, so that CPU runs do not pay for it.
using FindGpus = std::function<std::vector<std::string>(std::string* why_none)>;

// Throws UsageError if the machine does not have what the options require.
LaunchPlan plan_launch(const GroupOptions& options, bool cuda_built, const FindGpus& find_gpus);

// The number of ranks, which may exceed this machine's GPUs: nothing is started.
int plan_ranks(const GroupOptions& options, bool cuda_built, const FindGpus& find_gpus);

// The options of a WorkerGroup for the planned workers. model: to load; must outlive them; nullptr:
// none.
WorkerGroup::Options group_to_start(const GroupOptions& options, const LaunchPlan& plan,
                                    const runtime::OpenModel* model);
WorkerGroup::Body worker_body(const GroupOptions& options, const LaunchPlan& plan,
                              const runtime::OpenModel* model);

// Runs the planned workers until `talk` returns; if it throws, that is why the run has failed.
// Returns the exit code. By then the reason of a failure is on standard error, and no worker is
// left.
int run_workers(const GroupOptions& options, const LaunchPlan& plan,
                const runtime::OpenModel* model, const std::function<void(WorkerGroup&)>& talk);

// On boxes other than the first: runs the workers of this box for as long as the first one needs
// them. Returns the exit code. on_signal: see Supervisor.
int follow_first_box(const GroupOptions& options, const LaunchPlan& plan,
                     const runtime::OpenModel* model, const SignalHandler& on_signal = nullptr);

using OnEvent = std::function<void(const ipc::RequestEvent& pushed)>;

// Calls a method of rank 0 and waits for the reply. It has no timeout of its own: the supervisor
// aborts the group if the call takes too long. Events pushed by rank 0 meanwhile are passed to
// on_push.
template <typename Result, typename Request>
Result ask_rank0(ipc::Member& member, std::string_view method, const Request& request,
                 const OnEvent& on_push = {}) {
  ipc::RequestClient front_end(member);
  const std::uint64_t id = front_end.send(method, request);
  while (true) {
    const auto event = front_end.receive_event(std::chrono::seconds(1));
    if (!event) continue;
    if (event->kind() == ipc::RequestEvent::Kind::push) {
      if (on_push) on_push(*event);
    } else if (event->id() == id) {
      return event->get<Result>();
    }
  }
}

}  // namespace nvllm::launcher
