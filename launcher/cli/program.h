#pragma once

namespace nvllm::launcher {

// What nvllm-launch ends with. After a signal that asked it to stop, it is 128 + the signal's
// number.
enum ExitCode : int {
  kExitFine = 0,    // everything asked for was done
  kExitFailed = 1,  // the run failed; the last line on standard error says why
  kExitUsage =
      2,  // the command line is wrong, or asks for what this machine has not; nothing was started
  kExitDied = 3,   // a worker died
  kExitStuck = 4,  // a worker was alive but did nothing within --step-timeout
  kExitSignal = 128,
};

}  // namespace nvllm::launcher
