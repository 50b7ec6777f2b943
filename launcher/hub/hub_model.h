// Finds the model that --model names: a path, or the name of a model on the Hugging Face hub.
#pragma once

#include <string>

#include "launcher/session/user_cache.h"

namespace nvllm::launcher {

// The path of the model: `given` itself if it is a path, whether it exists or not; for a name
// (hub_name.h) the place in the hub's cache, into which it is downloaded if it is not there. What
// the cache holds is taken as it is, without asking the hub. weights: false: only the files that
// describe the model are wanted. As pull_model(), to be called while the process has one thread.
// Throws an Error that names `given` and the fix.
std::string find_model(const std::string& given, bool weights, const Environment& environment);

}  // namespace nvllm::launcher
