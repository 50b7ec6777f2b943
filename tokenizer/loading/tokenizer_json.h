// Reads tokenizer.json and tokenizer_config.json.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace nvllm::tokenizer {

// The content of tokenizer_config.json in addition to tokenizer.json. ChatTemplate::from_config()
// reads its chat template.
struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token, pad_token, unk_token;
  // Whether BOS and EOS are added to a text. Only transformers' class of Llama's tokenizers does
  // that, and here only if tokenizer.json's post-processor has no template, as in DeepSeek's files;
  // otherwise the template says which tokens are added.
  bool adds_bos = false, adds_eos = false;
  // Tokens to add to those of tokenizer.json, in the order of their ids.
  std::vector<AddedToken> added_tokens;
};

TokenizerConfig parse_tokenizer_config(std::string_view json);

// Tokens of the config, if given, are added to those of tokenizer.json.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json,
                                           const TokenizerConfig* config = nullptr);

struct LoadedTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  TokenizerConfig config;          // empty if there is no tokenizer_config.json
  std::string config_json = "{}";  // the whole of that file
};

// Loads a folder with tokenizer.json and optionally tokenizer_config.json. Errors name the file.
LoadedTokenizer load_tokenizer(const std::filesystem::path& folder);

// Parse the components of a tokenizer.json (components.cc). Unknown types are rejected by name;
// null yields a component that does nothing.
Normalizer parse_normalizer(std::string_view json);
PreTokenizer parse_pre_tokenizer(std::string_view json);
PostProcessor parse_post_processor(std::string_view json);
Decoder parse_decoder(std::string_view json);
std::vector<AddedToken> parse_added_tokens(std::string_view json);

}  // namespace nvllm::tokenizer
