// Scripts with which a shell completes the commands, options and values of this program. They are
// generated from the tables of options.
#pragma once

#include <string>

namespace nvllm::launcher {

// shell: "bash", "zsh" or "fish".
std::string completion_script(const std::string& shell);

}  // namespace nvllm::launcher
