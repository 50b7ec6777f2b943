// A prompt of the command line, combined with standard input.
#pragma once

#include <functional>
#include <string>

namespace nvllm::launcher {

// The prompt; if standard input is a nonempty file or pipe, an empty line and its text are
// appended, as in `nvllm-launch "Summarise this" <report.txt`. The prompt "-" is replaced by that
// text. say: called with a message for the user if a pipe sends nothing for long.
std::string with_standard_input(const std::string& prompt, int standard_input,
                                const std::function<void(const std::string&)>& say);

}  // namespace nvllm::launcher
