// Standard output, which carries results and nothing else.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace nvllm::launcher {

// Whoever read standard output has closed it: there is nothing to complain of, and nothing left to do.
class ClosedOutput : public Error {
 public:
  ClosedOutput() : Error("standard output was closed") {}
};

// Writes to standard output, all of it; else ClosedOutput or an Error.
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
