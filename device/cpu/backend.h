#pragma once

#include <memory>

#include "device/backend.h"

namespace nvllm::cpu {

std::unique_ptr<Backend> create_backend();

}  // namespace nvllm::cpu
