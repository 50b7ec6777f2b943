// A short text that tells models apart.
#pragma once

#include <string>

#include "runtime/model/open_model.h"

namespace nvllm::launcher {

// A hash of the model's configuration, its tokenizer and samples of its weights: equal for copies
// of a model in different places, and cheap, however large it is.
std::string model_hash(const runtime::OpenModel& model);

}  // namespace nvllm::launcher
