// The program's version and its exit codes.
#pragma once

namespace nvllm {

// The one place where the version is written.
inline constexpr const char* kVersion = "0.2.0";

namespace launcher {

// "fd5f585, 2026-11-25": the commit that a release was made of; of other builds "" or "redacted"
// (build_label.cc).
extern const char* const kBuildLabel;

// After a signal that asked the program to stop, the exit code is kExitSignal + the signal's
// number.
enum ExitCode : int {
  kExitFine = 0,    // everything that was asked for is done
  kExitFailed = 1,  // the run failed; the last line on standard error says why
  kExitUsage = 2,   // wrong command line, or more than this machine has; nothing was started
  kExitDied = 3,    // a worker died
  kExitStuck = 4,   // a worker was alive but did nothing within --step-timeout
  kExitSignal = 128,
};

}  // namespace launcher
}  // namespace nvllm
