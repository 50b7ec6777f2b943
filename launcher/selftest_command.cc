#include "launcher/selftest_command.h"

#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <vector>

#include "device/topology.h"
#include "ipc/front_end.h"
#include "launcher/exit_code.h"
#include "launcher/launch_plan.h"
#include "launcher/selftest_report.h"
#include "launcher/worker_group.h"
#include "runtime/worker.h"

namespace nvllm::launcher {
namespace {

// Results go to standard output in full, or the run has failed.
void write_results(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno("writing the results to standard output");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Waits without a limit of its own: the supervisor ends the group if that takes too long.
runtime::SelftestResult ask(ipc::Member& member, const runtime::SelftestRequest& request) {
  ipc::FrontEnd front_end(member);
  const std::uint64_t id = front_end.send("selftest", request);
  while (true) {
    const auto event = front_end.receive_event(std::chrono::seconds(1));
    if (event && event->kind() == ipc::FrontEvent::Kind::reply && event->id() == id) {
      return event->get<runtime::SelftestResult>();
    }
  }
}

}  // namespace

int run_selftest(const Options& options, std::int64_t started_ns) {
  const LaunchPlan plan = plan_launch(options, cuda_built(), visible_gpus);
  const runtime::WorkerOptions worker{.device = plan.device,
                                      .gpus = plan.gpus,
                                      .collectives = options.collectives,
                                      .log_level = options.log_level};
  SelftestReport report{.device = plan.device,
                        .started_ns = started_ns,
                        .memory = options.memory_report,
                        .result = {}};
  {
    WorkerGroup workers({.group = {.size = plan.ranks, .step_timeout = options.step_timeout}},
                        [&](const ipc::Group& group, int rank) {
                          return runtime::run_worker(group, rank, worker);
                        });
    report.forked_ns = now_ns();
    std::optional<std::string> error;
    try {
      report.result = ask(workers.member(), {.seconds = options.seconds});
      workers.expect_end();
      workers.member().group().request_stop();
    } catch (const Error& failure) {
      error = failure.what();
    }
    const int exit_code = workers.finish(error);
    if (exit_code != kExitFine) return exit_code;
  }
  write_results(options.json ? format_json(report) : format_table(report));
  const std::vector<std::string>& failures = report.result.failures;
  if (failures.empty()) return kExitFine;
  fail(failures.size(),
       failures.size() == 1 ? " check failed: " : " checks failed, the first: ", failures.front());
}

}  // namespace nvllm::launcher
