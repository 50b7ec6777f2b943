#include "base/error.h"
#include "model/checkpoint_file.h"

namespace nvllm::model {

Checkpoint open_gguf(const std::string& path) {
  fail(path, ": GGUF files are not supported yet");
}

}  // namespace nvllm::model
