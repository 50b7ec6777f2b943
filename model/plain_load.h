// The plain way to load, in few lines: what the fast one is compared with.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "device/backend.h"
#include "layers/parameter.h"
#include "model/checkpoint.h"

namespace nvllm::model {

// Row by row through pageable memory. progress(bytes) is called after each slice. Returns the number of
// bytes read.
std::uint64_t plain_load(std::span<layers::Parameter* const> parameters,
                         const Checkpoint& checkpoint, Backend& backend,
                         const std::function<void(std::uint64_t)>& progress);

}  // namespace nvllm::model
