// Where a model lies that a command line names, or does not name.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace nvllm::launcher {

// One environment variable; nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> process_environment(const char* name);

// `given`, as --model has it: a path; or a Hugging Face id ("Qwen/Qwen3-0.6B") that the local hub cache
// holds. Anything that looks like a path comes back as it is, whether it exists or not. An Error says what to
// do for an id that is not there.
std::string find_model(const std::string& given, const Environment& environment);

// Where measured choices for products are kept (runtime/product_file.h); empty if there is no cache for want of a
// home.
std::string products_path(const Environment& environment);

// The default model, SmolLM2-135M-Instruct, in the user's cache. tools/fetch-model puts it there; it is run if
// the file is missing and NVLLM_FETCH_MODEL names it. An Error says what to do if it is still not there.
std::string default_model(const Environment& environment);

// Where that is, whether it is there or not; tools/fetch-model knows the same place. An Error if there is no
// cache for want of a home.
std::string default_model_path(const Environment& environment);

}  // namespace nvllm::launcher
