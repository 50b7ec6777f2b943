// ConfigKeys: typed access to the values of a config.json. A value that is missing, of another type
// or out of range causes an Error that names the file, the key, the value and what it must be. A
// null counts as absent. Keys of a "text_config", which multimodal models have, count as top-level
// keys, and take precedence.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace nvllm::model {

// Inclusive limits.
struct IntegerLimits {
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};
struct NumberLimits {
  double min = 0;
  double max = std::numeric_limits<double>::max();
};

// Text of a file for error messages: in quotes, on one line, and truncated.
std::string quoted_text(std::string_view text);

// Const; cheap to copy.
class ConfigKeys {
 public:
  // `text` and `overrides` (empty: none) are JSON objects; a key of the overrides replaces the
  // text's, and objects are merged. RoPE's keys may have the older form (rope_theta, rope_scaling)
  // or the newer (rope_parameters) in either; rope() unifies them.
  static ConfigKeys parse(std::string_view text, std::string_view overrides,
                          const std::string& where);

  const std::string& where() const;  // the file, and whether there are overrides
  bool has(const char* key) const;

  std::int64_t integer(const char* key, IntegerLimits limits) const;
  std::optional<std::int64_t> optional_integer(const char* key, IntegerLimits limits) const;
  std::vector<std::int64_t> integers(const char* key,
                                     IntegerLimits limits) const;  // one, or a list
  double number(const char* key, NumberLimits limits) const;
  std::optional<double> optional_number(const char* key, NumberLimits limits) const;
  bool flag(const char* key, bool fallback) const;
  std::optional<std::string> optional_text(const char* key) const;
  std::vector<std::string> texts(const char* key) const;  // a list, may be empty

  // RoPE's own keys: rope_theta, rope_type, factor, ...
  ConfigKeys rope() const;
  // An object among RoPE's keys, which must exist. (RoPE by layer kind.)
  ConfigKeys rope_part(const char* key) const;

  // The same, with values for absent keys. `defaults`: a JSON object, without RoPE's keys.
  ConfigKeys with_defaults(std::string_view defaults) const;

  // Throws: "FILE: KEY VALUE: what is wrong and what would be right".
  template <typename... Parts>
  [[noreturn]] void refuse(const char* key, const Parts&... parts) const {
    refuse_with(key, str(parts...));
  }

 private:
  struct Document;  // the JSON, kept out of this header
  ConfigKeys(std::shared_ptr<const Document> document, bool rope, std::string part = "")
      : document_(std::move(document)), rope_(rope), part_(std::move(part)) {}
  [[noreturn]] void refuse_with(const char* key, const std::string& why) const;

  std::shared_ptr<const Document> document_;
  bool rope_;         // looks up RoPE's keys instead of top-level keys
  std::string part_;  // an object among RoPE's keys; empty: none
};

}  // namespace nvllm::model
