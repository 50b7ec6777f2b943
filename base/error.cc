#include "base/error.h"

#include <cstring>

namespace nvllm {

std::string errno_text(int error) {
  const char* name = strerrorname_np(error);
  return str(strerrordesc_np(error) ? strerrordesc_np(error) : "unknown error", " (",
             name ? name : std::to_string(error).c_str(), ")");
}

}  // namespace nvllm
