// Finds the default model and other files in the user's cache. launcher/hub finds models given on
// the command line.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace nvllm::launcher {

// Returns an environment variable; nullopt if it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> process_environment(const char* name);

// $XDG_CACHE_HOME, or ~/.cache; empty if there is no home.
std::string cache_folder(const Environment& environment);

// The file of the GEMM tuning cache; empty if there is no cache folder because HOME is not set.
std::string gemm_tuning_path(const Environment& environment);

// The history of chats, in $XDG_STATE_HOME or ~/.local/state; empty if there is no home.
std::string chat_history_path(const Environment& environment);

inline constexpr const char* kDefaultModelName = "SmolLM2-135M-Instruct";

// The path of the default model, SmolLM2-135M-Instruct, in the user's cache. If the file is missing
// and NVLLM_FETCH_MODEL is the path of tools/fetch-model, runs that to download it. Throws an Error
// with the fix if the file is still missing.
std::string default_model(const Environment& environment);

// The same path, whether the file exists or not; also used by tools/fetch-model. Throws an Error if
// there is no cache folder.
std::string default_model_path(const Environment& environment);

}  // namespace nvllm::launcher
