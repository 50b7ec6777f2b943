// A pipe that closes its ends.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "base/error.h"
#include "base/unique_fd.h"

namespace nvllm::testing {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("pipe2");
    reading.reset(ends[0]);
    writing.reset(ends[1]);
  }
  UniqueFd reading, writing;
};

}  // namespace nvllm::testing
