// Tests that disturb a running selftest, on the CPU and on GPUs. Each function starts nvllm-launch,
// disturbs it, and checks the result with doctest's macros.
#pragma once

#include <string>
#include <vector>

namespace nvllm::testing {

struct Setup {
  std::string device;  // "cpu", "cuda"
  int ranks = 2;
};

// A signal kills the worker (SIGKILL, SIGTERM) while it works.
void check_killed_worker(const Setup& setup, int rank, int signal);
// SIGSTOP to a worker while it works.
void check_stopped_worker(const Setup& setup, int rank);
// The launcher is asked to stop.
void check_signalled_launcher(const Setup& setup, int signal);
// SIGKILL to the launcher.
void check_killed_launcher(const Setup& setup);
// Two launchers at the same time.
void check_two_launchers(const Setup& setup);

}  // namespace nvllm::testing
