// Any tokenizer.json and tokenizer_config.json are either rejected with an Error or usable.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/stream.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nvllm::tokenizer;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    (void)parse_tokenizer_config(json);
  } catch (const nvllm::Error&) {
  }
  try {
    const auto tokenizer = parse_tokenizer(json);
    const auto ids = tokenizer->encode("Hello, <s>wor\u00E9ld \u2581 12\n\xFF", true);
    (void)tokenizer->decode(ids, true);
  } catch (const nvllm::Error&) {
  }
  return 0;
}
