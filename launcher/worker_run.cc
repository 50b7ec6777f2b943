#include "launcher/worker_run.h"

#include <unistd.h>

#include <cerrno>
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

void write_results(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno("writing the results to standard output");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace nvllm::launcher
