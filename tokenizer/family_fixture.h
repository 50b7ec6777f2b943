// Tokenizers of model families, for tests.
#pragma once

#include <memory>
#include <string>

#include "testing/read_file.h"
#include "tokenizer/loading/tokenizer_json.h"

namespace nvllm::tokenizer {

// tokenizer/testdata/NAME.json
inline std::unique_ptr<Tokenizer> load_family(const std::string& name) {
  return parse_tokenizer(testing::read_file("tokenizer/testdata/" + name + ".json"));
}

}  // namespace nvllm::tokenizer
