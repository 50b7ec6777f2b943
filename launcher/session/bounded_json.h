// The reader of base/bounded_json.h, for bodies of requests and lines of input.
#pragma once

#include "base/bounded_json.h"

namespace nvllm::launcher {

using nvllm::BadJson;
using nvllm::JsonLimits;
using nvllm::read_bounded_json;

}  // namespace nvllm::launcher
