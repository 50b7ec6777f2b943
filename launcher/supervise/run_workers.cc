#include "launcher/supervise/run_workers.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "ipc/group.h"
#include "launcher/cli/option_value.h"

namespace nvllm::launcher {

namespace {

void check_collectives(const GroupOptions& options, DeviceKind device) {
  const std::string& chosen = options.collectives;
  if (chosen == "auto" || (chosen == "shm") == (device == DeviceKind::cpu)) return;
  if (device == DeviceKind::cpu) {
    refuse("--collectives ", chosen, ": needs GPUs, and this run is on the CPU; pass auto or shm");
  }
  refuse("--collectives shm: is for the CPU, and this run is on GPUs; pass auto, peer or nccl");
}

}  // namespace

LaunchPlan plan_launch(const GroupOptions& options, bool cuda_built, const FindGpus& find_gpus) {
  if (options.device == DeviceKind::cuda && !cuda_built) {
    refuse(
        "--device cuda: this program was built without CUDA; pass --device cpu, or build it where "
        "the CUDA toolkit and NCCL are");
  }
  LaunchPlan plan;
  std::string why_none;
  if (cuda_built && options.device != DeviceKind::cpu) plan.gpus = find_gpus(&why_none);
  if (options.device == DeviceKind::cuda && plan.gpus.empty()) {
    refuse("--device cuda: no GPU here: ", why_none, "; pass --device cpu");
  }
  plan.device = plan.gpus.empty() ? DeviceKind::cpu : DeviceKind::cuda;
  check_collectives(options, plan.device);

  const int gpus = static_cast<int>(plan.gpus.size());
  plan.ranks = options.ranks.value_or(std::clamp(gpus, 1, ipc::kMaxRanks));
  if (plan.device == DeviceKind::cuda && plan.ranks > gpus) {
    refuse("--tp ", plan.ranks, ": this machine has ", gpus, gpus == 1 ? " GPU" : " GPUs",
           " for us; pass --tp ", gpus, gpus == 1 ? "" : " or less", ", or --device cpu");
  }
  if (plan.device == DeviceKind::cuda) plan.gpus.resize(static_cast<std::size_t>(plan.ranks));
  return plan;
}

int plan_ranks(const GroupOptions& options, bool cuda_built, const FindGpus& find_gpus) {
  if (options.ranks) return *options.ranks;
  if (!cuda_built || options.device == DeviceKind::cpu) return 1;
  std::string why_none;
  return std::clamp(static_cast<int>(find_gpus(&why_none).size()), 1, ipc::kMaxRanks);
}

WorkerGroup::Options group_to_start(const GroupOptions& options, const LaunchPlan& plan) {
  return {.group = {.size = plan.ranks, .step_timeout = options.step_timeout},
          .start_limit = plan.device == DeviceKind::cpu ? Supervisor::kCpuStartLimit
                                                        : Supervisor::kStartLimit};
}

WorkerGroup::Body worker_body(const GroupOptions& options, const LaunchPlan& plan,
                              const runtime::OpenModel* model) {
  const runtime::WorkerOptions worker{.device = plan.device,
                                      .gpus = plan.gpus,
                                      .collectives = options.collectives,
                                      .log_level = options.log_level,
                                      .model = model};
  return [worker](const ipc::Group& group, int rank) {
    return runtime::run_worker(group, rank, worker);
  };
}

int run_workers(const GroupOptions& options, const LaunchPlan& plan,
                const runtime::OpenModel* model, const std::function<void(WorkerGroup&)>& talk) {
  WorkerGroup::Options group = group_to_start(options, plan);
  group.on_late = [](int exit_code) { ::_exit(exit_code); };
  WorkerGroup workers(group, worker_body(options, plan, model));
  std::optional<std::string> error;
  try {
    talk(workers);
    workers.expect_end();
    workers.member().group().request_stop();
  } catch (const Error& failure) {
    error = failure.what();
  }
  return workers.finish(error);
}

}  // namespace nvllm::launcher
