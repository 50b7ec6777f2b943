#pragma once

#include <memory>

#include "device/backend.h"

namespace nvllm::cuda {

// An Error that says what is missing: a GPU, its driver, or the backend itself in this build.
std::unique_ptr<Backend> create_backend();

}  // namespace nvllm::cuda
