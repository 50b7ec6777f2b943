// Finds the model that a command line names, or the default one, and the other files in the user's
// cache.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace nvllm::launcher {

// Returns one environment variable; nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> process_environment(const char* name);

// The path of the model that --model gives: `given` itself if it is a path, whether it exists or
// not; or the folder of a Hugging Face id ("Qwen/Qwen3-0.6B") in the local hub cache. Throws an
// Error that says what to do if an id is not there.
std::string find_model(const std::string& given, const Environment& environment);

// The file of the GEMM tuning cache; empty if there is no cache folder because HOME is not set.
std::string gemm_tuning_path(const Environment& environment);

inline constexpr const char* kDefaultModelName = "SmolLM2-135M-Instruct";

// The path of the default model, SmolLM2-135M-Instruct, in the user's cache. If the file is missing
// and NVLLM_FETCH_MODEL names tools/fetch-model, that is run to download it. Throws an Error that
// says what to do if the file is still not there.
std::string default_model(const Environment& environment);

// The same path, whether the file exists or not; tools/fetch-model uses it, too. Throws an Error if
// there is no cache folder.
std::string default_model_path(const Environment& environment);

}  // namespace nvllm::launcher
