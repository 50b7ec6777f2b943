// A golden model with a weight that is NaN.
#pragma once

#include <string>

namespace nvllm::testing {

inline constexpr const char* kBrokenTensor = "model.layers.1.mlp.down_proj.weight";
inline constexpr const char* kBrokenPlace = "[2, 40]";

// Copies tests/data/golden-models/llama-tied to `path`, a new folder, and writes NaN into its
// tensor kBrokenTensor at kBrokenPlace.
void make_broken_model(const std::string& path);

}  // namespace nvllm::testing
