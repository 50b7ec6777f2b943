// Scripts with which a shell completes the commands, options and values of this program; made from the tables
// of options, so they know what the program knows.
#pragma once

#include <string>

namespace nvllm::launcher {

// shell: "bash", "zsh" or "fish".
std::string completion_script(const std::string& shell);

}  // namespace nvllm::launcher
