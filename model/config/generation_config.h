// GenerationConfig: a checkpoint's sampling defaults and end tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/config.h"

namespace nvllm::model {

// Absent values have no default in the file. Names are as in the file.
struct GenerationConfig {
  std::optional<double> temperature;  // 0 if "do_sample" is false
  std::optional<double> top_p;
  std::optional<std::int32_t> top_k;  // 0 or -1: off
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<std::int32_t> max_new_tokens;
  // From the file, otherwise from config.json, and the tokenizer's own; only those in the
  // vocabulary, without duplicates.
  std::vector<std::int32_t> eos_token_ids;
};

// `text`: of the file; `where`: the file, for errors. Throws an Error that names a bad value.
// Unused keys are ignored.
GenerationConfig parse_generation_config(std::string_view text, const ModelConfig& config,
                                         const std::string& where);

// The defaults of a checkpoint without the file.
GenerationConfig default_generation_config(const ModelConfig& config);

// Reads the folder's generation_config.json, and the end token of its tokenizer_config.json, where
// these exist. An empty name is the current folder.
GenerationConfig read_generation_config(const std::string& folder, const ModelConfig& config);

}  // namespace nvllm::model
