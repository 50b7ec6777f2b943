// What a process inherits from its parent (signals, limits, files, umask), set to known values.
// main() calls this before anything else.
//
//   signals   none is blocked. Those that the parent ignores have their usual action again (an
//             ignored SIGCHLD would hide how workers end, an ignored SIGTERM all requests to stop),
//             but for the terminal's: nohup and shells ignore these on purpose. SIGPIPE and SIGXFSZ
//             are ignored, since writers check the result of write() instead.
//   files     standard input, output and error are open, so that no file of the program's takes
//             their numbers. What was closed is /dev/null; standard output can then only be read,
//             so that results that nobody gets are an error and not lost in silence.
//   umask     hides nothing from this user, who must be able to read what he has written.
//   limits    of open files and of the stack: raised as far as the parent allows. Threads have
//             stacks of kStackBytes whatever the limit is.
#pragma once

#include <cstddef>

namespace nvllm::launcher {

// Of each thread. Recursion over input is bounded for this size.
inline constexpr std::size_t kStackBytes = std::size_t{8} << 20;
// The main thread can do with less.
inline constexpr std::size_t kMinStackBytes = std::size_t{1} << 20;

// Throws UsageError if the limit of the stack is below kMinStackBytes, or if a standard file cannot
// be opened.
void reset_inherited_state();

}  // namespace nvllm::launcher
