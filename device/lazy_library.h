#pragma once

#include <string>

namespace nvllm::internal {

// dlopen() of a shared library by its name: where the system looks, then in the CUDA toolkits that
// $CUDA_HOME, $CUDA_PATH and /usr/local/cuda name. nullptr, with the reason, if it is nowhere.
void* open_library(const char* name, std::string* why);

}  // namespace nvllm::internal
