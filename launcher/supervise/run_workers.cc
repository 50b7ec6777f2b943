#include "launcher/supervise/run_workers.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "cluster/link_process.h"
#include "cluster/task.h"
#include "device/topology.h"
#include "ipc/group.h"
#include "ipc/stage_boxes.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/program.h"
#include "launcher/supervise/model_hash.h"

namespace nvllm::launcher {

namespace {

void check_collectives(const GroupOptions& options, DeviceKind device) {
  const std::string& chosen = options.collectives;
  if (chosen == "peer" && options.task.boxes > 1) {
    refuse(
        "--collectives peer: GPUs of other boxes have no access to the memory of this one's; "
        "pass auto or nccl");
  }
  if (chosen == "auto" || (chosen == "shm") == (device == DeviceKind::cpu)) return;
  if (device == DeviceKind::cpu) {
    refuse("--collectives ", chosen, ": needs GPUs, and this run is on the CPU; pass auto or shm");
  }
  refuse("--collectives shm: is for the CPU, and this run is on GPUs; pass auto, peer or nccl");
}

// Settings that must be equal on all boxes.
std::vector<cluster::Fact> facts_of(const GroupOptions& options, const LaunchPlan& plan,
                                    const runtime::OpenModel* model) {
  return {{"version of nvllm", str(kVersion, ' ', kBuildLabel)},
          {"command line", options.command_line},
          {"kind of device (--device)", name_of(plan.device)},
          {"number of ranks (--tp)", std::to_string(plan.ranks)},
          {"model", model != nullptr ? model_hash(*model) : ""}};
}

void check_boxes(const GroupOptions& options, DeviceKind device) {
  if (options.task.shares_machine && device == DeviceKind::cpu) {
    refuse(options.task.starter,
           " has started several tasks on one machine, which is of use for "
           "GPUs, and this run is on the CPU; start one task on each (mpirun --map-by ppr:1:node, "
           "srun --ntasks-per-node=1)");
  }
}

// Used to check that no two boxes use the same GPU.
std::vector<std::string> gpus_here(const LaunchPlan& plan) {
  std::vector<std::string> here = plan.gpus;
  std::erase(here, "");  // of ranks elsewhere
  return here.empty() ? here : names_of_gpus(here, gpu_uuids(nullptr));
}

// options.ranks is per stage.
void plan_stages(const GroupOptions& options, LaunchPlan& plan) {
  const int stages = options.stages, ranks = plan.ranks;
  if (stages == 1) return;
  if (stages * ranks > ipc::kMaxRanks) {
    refuse("--pp ", stages, ": so many stages of ", ranks, " ranks (--tp) are ", stages * ranks,
           " ranks, and there can be ", ipc::kMaxRanks, "; pass --pp ", ipc::kMaxRanks / ranks,
           " or less, or a smaller --tp");
  }
  plan.ranks = stages * ranks;
}

// Assigns GPUs to the ranks of this box, if there are several.
void deal_gpus_of_box(const GroupOptions& options, LaunchPlan& plan) {
  const auto box = plan.box_ranks.begin() + options.task.box;
  const auto gpus = std::ssize(plan.gpus);
  if (*box > gpus) {
    refuse("--tp ", plan.ranks / options.stages, ": box ", options.task.box, " gets ", *box,
           " of all ", plan.ranks, " ranks, and has ", gpus, gpus == 1 ? " GPU" : " GPUs",
           " available; pass a smaller --tp or --pp, start more boxes, or pass --device cpu");
  }
  std::vector<std::string> dealt(static_cast<std::size_t>(plan.ranks));
  std::copy_n(plan.gpus.begin(), *box,
              dealt.begin() + std::accumulate(plan.box_ranks.begin(), box, std::ptrdiff_t{0}));
  plan.gpus = std::move(dealt);
}

// Assigns GPUs to the ranks of all stages.
void assign_gpus(const GroupOptions& options, LaunchPlan& plan) {
  if (plan.device == DeviceKind::cpu) return;
  if (!plan.box_ranks.empty()) return deal_gpus_of_box(options, plan);
  const int gpus = static_cast<int>(plan.gpus.size()), ranks = plan.ranks / options.stages;
  const char* const found = gpus == 1 ? " GPU" : " GPUs";
  if (plan.ranks > gpus && options.stages > 1) {
    refuse("--pp ", options.stages, ": so many stages of ", ranks, ranks == 1 ? " rank" : " ranks",
           " (--tp) are ", plan.ranks, " GPUs, and this machine has ", gpus,
           " available; pass a smaller --pp", ranks == 1 ? "" : " or --tp", ", or --device cpu");
  }
  if (plan.ranks > gpus) {
    refuse("--tp ", plan.ranks, ": this machine has ", gpus, found, " available; pass --tp ", gpus,
           gpus == 1 ? "" : " or less", ", or --device cpu");
  }
  plan.gpus.resize(static_cast<std::size_t>(plan.ranks));
}

// Without --tp: all GPUs (each box is assumed to have as many as this one), divided among the
// stages, but enough that each box has a rank.
int ranks_of_stage(const GroupOptions& options, std::size_t gpus) {
  if (options.ranks) return *options.ranks;
  const int boxes = options.task.boxes, stages = options.stages;
  const int all = std::min(boxes * static_cast<int>(gpus), ipc::kMaxRanks);
  return std::max((boxes + stages - 1) / stages, all / stages);
}

void deal_ranks(const GroupOptions& options, LaunchPlan& plan) {
  const int boxes = options.task.boxes;
  if (boxes == 1) return;
  plan.box_ranks =
      or_refuse([&] { return cluster::deal_ranks(plan.ranks, options.stages, boxes); });
}

void check_two_level(const GroupOptions& options, const LaunchPlan& plan) {
  if (options.collectives != "two-level") return;
  const bool several = !plan.box_ranks.empty();
  const auto box_ranks = several ? plan.box_ranks : std::vector{plan.ranks};
  std::string why;
  if (ipc::two_level_ranks(box_ranks, options.stages, why)) return;
  refuse("--collectives two-level: ", why, "; pass ", several ? "auto or nccl" : "auto or peer");
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
  check_boxes(options, plan.device);

  plan.ranks = ranks_of_stage(options, plan.gpus.size());
  plan_stages(options, plan);
  deal_ranks(options, plan);
  check_two_level(options, plan);
  assign_gpus(options, plan);
  return plan;
}

int plan_ranks(const GroupOptions& options, bool cuda_built, const FindGpus& find_gpus) {
  if (options.ranks) return *options.ranks;
  if (!cuda_built || options.device == DeviceKind::cpu) return 1;
  std::string why_none;
  return std::clamp(static_cast<int>(find_gpus(&why_none).size()), 1, ipc::kMaxRanks);
}

WorkerGroup::Options group_to_start(const GroupOptions& options, const LaunchPlan& plan,
                                    const runtime::OpenModel* model) {
  WorkerGroup::Options group{.group = {.size = plan.ranks,
                                       .step_timeout = options.step_timeout,
                                       .box_ranks = plan.box_ranks,
                                       .box = options.task.box},
                             .start_limit = plan.device == DeviceKind::cpu
                                                ? Supervisor::kCpuStartLimit
                                                : Supervisor::kStartLimit};
  if (plan.box_ranks.empty()) return group;
  group.link = [options, plan, model](const ipc::Group& of) {
    return cluster::run_link(of, {.task = options.task,
                                  .facts = facts_of(options, plan, model),
                                  .gpus = gpus_here(plan),
                                  .stages = options.stages,
                                  .log_level = options.log_level});
  };
  return group;
}

WorkerGroup::Body worker_body(const GroupOptions& options, const LaunchPlan& plan,
                              const runtime::OpenModel* model) {
  const runtime::WorkerOptions worker{.device = plan.device,
                                      .gpus = plan.gpus,
                                      .collectives = options.collectives,
                                      .log_level = options.log_level,
                                      .model = model,
                                      .stages = options.stages};
  return [worker](const ipc::Group& group, int rank) {
    return runtime::run_worker(group, rank, worker);
  };
}

int run_workers(const GroupOptions& options, const LaunchPlan& plan,
                const runtime::OpenModel* model, const std::function<void(WorkerGroup&)>& talk) {
  WorkerGroup::Options group = group_to_start(options, plan, model);
  group.on_finish_timeout = [](int exit_code) { ::_exit(exit_code); };
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

int follow_first_box(const GroupOptions& options, const LaunchPlan& plan,
                     const runtime::OpenModel* model, const SignalHandler& on_signal) {
  WorkerGroup::Options group = group_to_start(options, plan, model);
  group.on_signal = on_signal;
  WorkerGroup workers(group, worker_body(options, plan, model));
  return workers.follow();
}

}  // namespace nvllm::launcher
