// What is asked of `tokenize`, `detokenize` and `template`.
#pragma once

#include <string>
#include <vector>

namespace nvllm::launcher {

struct TextOptions {
  std::string input;               // a file, "-", or empty
  std::vector<std::string> words;  // texts or ids on the command line itself
  std::string chat_template;       // a file; empty: the model's own
  // Of lines that do not say it themselves.
  bool add_special_tokens = false;
  bool skip_special_tokens = false;
};

}  // namespace nvllm::launcher
