// TerminalWatcher: a process that gives a terminal its settings back if this one is killed while it
// has changed them. It has the terminal and a pipe, and nothing else: the pipe ends with whoever
// made it, whatever that ended by.
#pragma once

#include <sys/types.h>
#include <termios.h>

#include "base/unique_fd.h"

namespace nvllm::launcher {

// Not thread-safe. Without it, where the system refuses a process, nothing else is missing.
class TerminalWatcher {
 public:
  // before: the settings to restore; changed: those that this process is about to give the
  // terminal. Whatever else the terminal has by then is somebody else's choice, a shell's say, and
  // stays.
  TerminalWatcher(int terminal, const termios& before, const termios& changed);
  ~TerminalWatcher();  // the process ends and leaves the terminal alone
  TerminalWatcher(const TerminalWatcher&) = delete;
  TerminalWatcher& operator=(const TerminalWatcher&) = delete;

 private:
  UniqueFd alive_;  // the writing end of the pipe
  pid_t pid_ = -1;
};

}  // namespace nvllm::launcher
