// The program's version and its exit codes.
#pragma once

namespace nvllm {

// The version is defined only here.
inline constexpr const char* kVersion = "0.2.0";

namespace launcher {

// "fd5f585, 2026-11-25": the commit of a release; in other builds "" or "redacted"
// (build_label.cc).
extern const char* const kBuildLabel;

// After a signal that asked the program to stop, the exit code is kExitSignal plus the signal's
// number.
enum ExitCode : int {
  kExitFine = 0,    // everything requested is done
  kExitFailed = 1,  // the run failed; the last line on standard error says why
  kExitUsage = 2,   // wrong command line, or it exceeds this machine; nothing was started
  kExitDied = 3,    // a worker died
  kExitStuck = 4,   // a worker was alive but made no progress within --step-timeout
  kExitSignal = 128,
};

}  // namespace launcher
}  // namespace nvllm
