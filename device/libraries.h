// Which of the libraries that are loaded when they are first needed (lazy_library.h) this machine has.
#pragma once

#include <string>

namespace nvllm {

struct LibraryState {
  std::string version;  // "2.27.7"
  std::string error;    // why it cannot be loaded; empty: it can
};

LibraryState find_cublaslt();
LibraryState find_nccl();

}  // namespace nvllm
