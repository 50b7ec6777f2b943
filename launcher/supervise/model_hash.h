// A short text that identifies a model.
#pragma once

#include <string>

#include "runtime/model/open_model.h"

namespace nvllm::launcher {

// A hash of the model's configuration, its tokenizer and samples of its weights: equal for copies
// of a model in different places, and cheap even for large models.
std::string model_hash(const runtime::OpenModel& model);

}  // namespace nvllm::launcher
