#include "launcher/serve/api/field_values.h"

#include <nlohmann/json.hpp>

namespace nvllm::launcher {

void read_value(const nlohmann::json& value, Texts& to) {
  if (value.is_array() && value.size() > Texts::kMaxCount) {
    fail(value.size(), " strings: at most ", Texts::kMaxCount, " are allowed");
  }
  to.items = read_texts(value);
  std::size_t bytes = 0;
  for (const std::string& text : to.items) bytes += text.size();
  if (bytes > Texts::kMaxBytes) {
    fail(bytes, " bytes of strings: at most ", Texts::kMaxBytes, " are allowed");
  }
}

}  // namespace nvllm::launcher
