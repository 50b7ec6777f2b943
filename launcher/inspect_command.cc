#include "launcher/inspect_command.h"

#include <vector>

#include "device/topology.h"
#include "launcher/exit_code.h"
#include "launcher/inspect_report.h"
#include "launcher/launch_plan.h"
#include "launcher/load_display.h"
#include "launcher/worker_run.h"
#include "runtime/model_description.h"

namespace nvllm::launcher {
namespace {

std::vector<runtime::RankLoad> load(WorkerGroup& workers, const Options& options) {
  LoadDisplay progress(workers.console());
  return ask_rank0<std::vector<runtime::RankLoad>>(
      workers.member(), "load", runtime::LoadRequest{.checksums = options.inspect.checksums},
      [&](const ipc::RequestEvent& pushed) {
        if (pushed.name() == "load_state") progress.show(pushed.get<runtime::LoadState>());
      });
}

}  // namespace

int run_inspect(const Options& options, std::int64_t started_ns) {
  const runtime::OpenModel model = runtime::open_model(options.model);
  InspectReport report{.started_ns = started_ns, .model = {}, .loads = {}};
  int ranks = 0;
  if (options.inspect.load) {
    if (!model.dummy && !model.checkpoint) {
      throw UsageError(str("--load: ", model.path,
                           " is a configuration alone; pass its folder as --model, or "
                           "--load-format dummy"));
    }
    const LaunchPlan plan = plan_launch(options.group, cuda_built(), visible_gpus);
    const runtime::WorkerOptions worker{.device = plan.device,
                                        .gpus = plan.gpus,
                                        .collectives = options.group.collectives,
                                        .log_level = options.group.log_level,
                                        .model = &model};
    ranks = plan.ranks;
    const int exit_code = run_workers(options.group, ranks, worker, [&](WorkerGroup& workers) {
      report.loads = load(workers, options);
    });
    if (exit_code != kExitFine) return exit_code;
  } else {
    ranks = plan_ranks(options.group, cuda_built(), visible_gpus);
  }
  report.model = runtime::describe_model(model, ranks);
  write_results(options.json ? format_json(report) : format_table(report));
  return kExitFine;
}

}  // namespace nvllm::launcher
