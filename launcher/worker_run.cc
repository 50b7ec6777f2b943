#include "launcher/worker_run.h"

#include <optional>

#include "base/error.h"

namespace nvllm::launcher {

int run_workers(const GroupOptions& options, int ranks, const runtime::WorkerOptions& worker,
                const std::function<void(WorkerGroup&)>& talk) {
  WorkerGroup workers(
      {.group = {.size = ranks, .step_timeout = options.step_timeout}},
      [&](const ipc::Group& group, int rank) { return runtime::run_worker(group, rank, worker); });
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
