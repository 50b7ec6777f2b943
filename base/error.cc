#include "base/error.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/logging.h"

namespace nvllm {

std::string errno_text(int error) {
  const char* name = strerrorname_np(error);
  return str(strerrordesc_np(error) ? strerrordesc_np(error) : "unknown error", " (",
             name ? name : std::to_string(error).c_str(), ")",
             error == EMFILE ? "; raise the limit of open files (ulimit -n)" : "");
}

void internal::check_failed(const char* file, int line, const std::string& text) {
  log_line(LogLevel::error, str(file, ':', line, ": check failed: ", text));
  std::abort();
}

}  // namespace nvllm
