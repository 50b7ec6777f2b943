// A prompt of the command line, with what stands on standard input.
#pragma once

#include <functional>
#include <string>

namespace nvllm::launcher {

// The prompt; joined by an empty line to the text on standard input, if that is a file or a pipe
// with something in it, as in `nvllm-launch "Summarise this" <report.txt`. The prompt "-" is that
// text alone. say: shows the user a sentence, once it takes long until a pipe says anything.
std::string with_standard_input(const std::string& prompt, int standard_input,
                                const std::function<void(const std::string&)>& say);

}  // namespace nvllm::launcher
