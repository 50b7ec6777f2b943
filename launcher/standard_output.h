// Standard output, which carries results and nothing else.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace nvllm::launcher {

// Who read the output has gone: there is nothing to complain of, and nothing left to do.
class OutputClosed : public Error {
 public:
  using Error::Error;
};

// Writes to standard output, all of it; else OutputClosed or an Error.
void write_results(std::string_view text);

// Collects what is small.
class ResultWriter {
 public:
  void write(std::string_view text) {
    pending_ += text;
    if (pending_.size() >= kMost) flush();
  }
  void flush() {
    write_results(pending_);
    pending_.clear();
  }

 private:
  static constexpr std::size_t kMost = 1 << 16;
  std::string pending_;
};

}  // namespace nvllm::launcher
