#include "base/check.h"

#include <cstdlib>

#include "base/logging.h"

namespace nvllm::internal {

void check_failed(const char* file, int line, const std::string& text) {
  log_line(LogLevel::error, str(file, ':', line, ": check failed: ", text));
  std::abort();
}

}  // namespace nvllm::internal
