// Which files of a repository or a folder make up a model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/hub/hub_name.h"

namespace nvllm::launcher {

inline constexpr const char* kIndexName = "model.safetensors.index.json";

struct ModelFiles {
  std::vector<std::string> names;
  std::string gguf;    // the first of the GGUF files among them; empty: none is
  bool index = false;  // the weights are those that kIndexName, one of the names, lists
};

// The files of a model: configuration, tokenizer and safetensors, or one GGUF file with all its
// shards. weights: false: without weights. Throws an Error that names the model and what to pass if
// there is more than one choice, or none.
ModelFiles choose_files(const HubName& name, const std::vector<std::string>& all, bool weights);

// The files that an index of safetensors names, each once. Throws an Error.
std::vector<std::string> files_of_index(std::string_view json);

// Refuses files that are there and are not what their names say: pointers of git-lfs, and weights
// that only PyTorch reads. path: a folder or a file.
void check_model_path(const std::string& path, bool weights);

}  // namespace nvllm::launcher
