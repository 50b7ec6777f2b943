// State that a process inherits from its parent (signals, limits, files, umask), reset to known
// values. main() calls this before anything else.
//
//   signals   none are blocked. Those that the parent ignores get their default action (an ignored
//             SIGCHLD would hide how workers end, an ignored SIGTERM all requests to stop), except
//             terminal signals: nohup and shells ignore these on purpose. SIGPIPE and SIGXFSZ are
//             ignored, since writers check the result of write() instead.
//   files     standard input, output and error are open, so that no other file gets their numbers.
//             A closed one is replaced by /dev/null; standard output can then only be read, so
//             that results which nobody receives are an error and not lost silently.
//   umask     hides nothing from this user, who must be able to read the files he wrote.
//   limits    of open files and of the stack: raised as far as the parent permits. Threads have
//             stacks of kStackBytes whatever the limit is.
#pragma once

#include <cstddef>

namespace nvllm::launcher {

// For each thread. Recursion over input is bounded for this size.
inline constexpr std::size_t kStackBytes = std::size_t{8} << 20;
// Minimum for the main thread.
inline constexpr std::size_t kMinStackBytes = std::size_t{1} << 20;

// Throws UsageError if the stack limit is below kMinStackBytes, or if a standard file cannot be
// opened.
void reset_inherited_state();

}  // namespace nvllm::launcher
