// Lines of a file or of standard input, as they come.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace nvllm::launcher {

class LineReader {
 public:
  // `path`: a file, or "-" for standard input. before_wait: called before each read that may wait, so that
  // whoever talks to this program line by line gets its answers.
  LineReader(const std::string& path, std::function<void()> before_wait);

  // The next line without its end; nothing after the last one.
  std::optional<std::string> next();

 private:
  std::string name_;  // for errors
  UniqueFd file_;     // none: standard input
  int fd_;
  std::function<void()> before_wait_;
  std::string buffer_;
  std::size_t at_ = 0;
  bool ended_ = false;
};

}  // namespace nvllm::launcher
