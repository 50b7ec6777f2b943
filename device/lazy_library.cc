#include "device/lazy_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace nvllm::internal {

void* open_library(const char* name, std::string* why) {
  if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  *why = dlerror();
  std::vector<std::string> toolkits;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* toolkit = std::getenv(variable)) toolkits.emplace_back(toolkit);
  }
  toolkits.emplace_back("/usr/local/cuda");
  for (const std::string& toolkit : toolkits) {
    for (const char* folder : {"lib64", "lib"}) {
      const std::string path = toolkit + "/" + folder + "/" + name;
      std::error_code ignored;
      if (!std::filesystem::exists(path, ignored)) continue;
      if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
      *why = dlerror();  // it is here but does not load: the reason that matters
    }
  }
  return nullptr;
}

}  // namespace nvllm::internal
