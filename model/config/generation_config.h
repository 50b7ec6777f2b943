// GenerationConfig: a checkpoint's sampling defaults, and the tokens that end an answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/config.h"

namespace nvllm::model {

// Absent: the file gives no default. Names are as in the file.
struct GenerationConfig {
  std::optional<double> temperature;  // 0, whatever the file says of it, where "do_sample" is false
  std::optional<double> top_p;
  std::optional<std::int32_t> top_k;  // 0 or -1: off
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<std::int32_t> max_new_tokens;
  // The file's, or else config.json's; only those that the vocabulary has, each once.
  std::vector<std::int32_t> eos_token_ids;
};

// `text`: of the file; `where`: the file, for errors. A bad value is an Error that names it. Keys
// that this program does not use are ignored.
GenerationConfig parse_generation_config(std::string_view text, const ModelConfig& config,
                                         const std::string& where);

// The defaults of a checkpoint without the file.
GenerationConfig default_generation_config(const ModelConfig& config);

// Reads the folder's generation_config.json, if there is one. An empty name is the current folder.
GenerationConfig read_generation_config(const std::string& folder, const ModelConfig& config);

}  // namespace nvllm::model
