// Selects the files of a repository or folder that make up a model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/hub/hub_name.h"

namespace nvllm::launcher {

inline constexpr const char* kIndexName = "model.safetensors.index.json";

struct ModelFiles {
  std::vector<std::string> names;
  std::string gguf;    // the first of its GGUF files; empty: none
  bool index = false;  // whether the weights are the files that kIndexName, which is one of the
                       // names, lists
};

// The files of a model: configuration, tokenizer and safetensors, or one GGUF file with all its
// shards. weights: if false, without weights. Throws an Error that names the model and what to pass
// if there is no choice, or more than one.
ModelFiles choose_files(const HubName& name, const std::vector<std::string>& all, bool weights);

// The files named in a safetensors index, without duplicates. Throws an Error.
std::vector<std::string> files_of_index(std::string_view json);

// Rejects files that are not what their names say: git-lfs pointers, and weights that only PyTorch
// can read. path: a folder or a file.
void check_model_path(const std::string& path, bool weights);

}  // namespace nvllm::launcher
