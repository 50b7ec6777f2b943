// Runs a measurement in forked ranks and returns their results to the parent.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "ipc/group.h"

namespace nvllm::ipc::bench {

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Forks `ranks` processes of one group. Each returns one Result, a plain struct; the first failure
// ends all of them and is thrown here.
template <typename Result, typename Measure>
std::vector<Result> measure(int ranks, const Measure& measure_rank, GroupOptions options = {}) {
  static_assert(std::is_trivially_copyable_v<Result>);
  options.size = ranks;
  const Group group = Group::create(options);
  const std::size_t bytes = sizeof(Result) * static_cast<std::size_t>(ranks);
  void* const shared =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail_errno("mmap of ", bytes, " bytes");
  auto* const results = static_cast<Result*>(shared);

  std::fflush(nullptr);
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) fail_errno("fork");
    if (pid != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      Member member = group.join(rank);
      results[rank] = measure_rank(member);
    } catch (const std::exception& error) {
      group.abort(str("rank ", rank, ": ", error.what()));
      _exit(1);
    }
    _exit(0);
  }
  for (int ended = 0; ended < ranks; ++ended) {
    int status = 0;
    const pid_t pid = wait(&status);
    if (status != 0) group.abort(str("the process ", pid, " ended with status ", status));
  }
  std::vector<Result> all(results, results + ranks);
  munmap(shared, bytes);
  if (group.aborted()) fail(group.abort_reason());
  return all;
}

}  // namespace nvllm::ipc::bench
