// Expected numbers for tests, from safetensors files.
//
//   const auto golden = read_golden("tests/data/golden-layers/layers.safetensors");
//   golden.at("merge.out").values
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nvllm::testing {

struct GoldenTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;  // row-major; exact, even for bfloat16
};

// All tensors of a file (float32 and bfloat16), by name. For trusted files: anything unexpected
// throws.
std::map<std::string, GoldenTensor> read_golden(const std::string& path);

}  // namespace nvllm::testing
