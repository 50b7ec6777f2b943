#include "launcher/selftest_command.h"

#include <string>
#include <vector>

#include "device/topology.h"
#include "launcher/exit_code.h"
#include "launcher/launch_plan.h"
#include "launcher/selftest_report.h"
#include "launcher/worker_run.h"
#include "runtime/worker/worker.h"

namespace nvllm::launcher {

int run_selftest(const Options& options, std::int64_t started_ns) {
  const LaunchPlan plan = plan_launch(options.group, cuda_built(), visible_gpus);
  const runtime::WorkerOptions worker{.device = plan.device,
                                      .gpus = plan.gpus,
                                      .collectives = options.group.collectives,
                                      .log_level = options.group.log_level};
  SelftestReport report{.device = plan.device,
                        .started_ns = started_ns,
                        .memory = options.memory_report,
                        .result = {}};
  const int exit_code = run_workers(options.group, plan.ranks, worker, [&](WorkerGroup& workers) {
    report.forked_ns = now_ns();
    report.result = ask_rank0<runtime::SelftestResult>(
        workers.member(), "selftest",
        runtime::SelftestRequest{.seconds = options.selftest.seconds});
  });
  if (exit_code != kExitFine) return exit_code;
  write_results(options.json ? format_json(report) : format_table(report));
  const std::vector<std::string>& failures = report.result.failures;
  if (failures.empty()) return kExitFine;
  fail(failures.size(),
       failures.size() == 1 ? " check failed: " : " checks failed, the first: ", failures.front());
}

}  // namespace nvllm::launcher
