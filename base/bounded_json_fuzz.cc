// Any bytes as JSON: rejected with one short line, or parsed like nlohmann's own parser.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/bounded_json.h"
#include "base/json_text.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json read = nvllm::read_bounded_json(text, {.max_depth = 32});
    require(read == nvllm::parse_json(text));
    require(nvllm::parse_nested_json(text, "FILE") == read);
  } catch (const nvllm::BadJson& error) {
    require(std::string_view(error.what()).size() < 300);
  }
  return 0;
}
