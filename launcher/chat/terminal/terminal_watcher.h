// TerminalWatcher: a process that restores a terminal's settings if this process is killed while it
// has changed them. It only has the terminal and a pipe, whose writing end closes with this
// process, however it ends.
#pragma once

#include <sys/types.h>
#include <termios.h>

#include "base/unique_fd.h"

namespace nvllm::launcher {

// Not thread-safe. If the system refuses another process, everything else still works.
class TerminalWatcher {
 public:
  // before: the settings to restore; changed: those that this process is about to set. If the
  // terminal has any other settings by then, another program has chosen them, and they stay.
  TerminalWatcher(int terminal, const termios& before, const termios& changed);
  ~TerminalWatcher();  // ends the process, which leaves the terminal unchanged
  TerminalWatcher(const TerminalWatcher&) = delete;
  TerminalWatcher& operator=(const TerminalWatcher&) = delete;

 private:
  UniqueFd alive_;  // the pipe's writing end
  pid_t pid_ = -1;
};

}  // namespace nvllm::launcher
