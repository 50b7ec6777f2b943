// The small parts of a tokenizer.json, from their JSON text. What is not known is refused by name.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"

namespace nvllm::tokenizer {

// Each takes null, too, for the part that does nothing.
Normalizer parse_normalizer(std::string_view json);
PreTokenizer parse_pre_tokenizer(std::string_view json);
PostProcessor parse_post_processor(std::string_view json);
Decoder parse_decoder(std::string_view json);

std::vector<AddedToken> parse_added_tokens(std::string_view json);

}  // namespace nvllm::tokenizer
