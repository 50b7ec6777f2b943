// RMSNorm as a layer: its weight, whole on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/parameter.h"

namespace nvllm::layers {

struct RmsNorm {
  Parameter weight;  // [columns]
  float epsilon;

  // `tensor`: its weight in checkpoints, "model.norm.weight"
  RmsNorm(const std::string& name, const std::string& tensor, std::int64_t columns, float epsilon);

  void declare(std::vector<Parameter*>& all) { all.push_back(&weight); }
};

}  // namespace nvllm::layers
