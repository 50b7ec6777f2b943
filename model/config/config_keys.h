// ConfigKeys gives the values of a config.json by their keys. Whatever is missing, of another type
// or out of range is an Error that names the file, the key, the value and what it must be. A null
// counts as absent. Keys of a "text_config", which multimodal models have, count as those of the
// top level, and win over them.
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

// Text of a file as errors show it: in quotes, on one line, and not too long.
std::string quoted_text(std::string_view text);

// Const; cheap to copy.
class ConfigKeys {
 public:
  // `text` and `overrides` (empty: none) are JSON objects; a key of the overrides replaces the
  // text's, and an object is merged into an object. RoPE's keys may have the older spelling
  // (rope_theta, rope_scaling) or the newer (rope_parameters) in either; rope() joins them.
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
  std::vector<std::string> texts(const char* key) const;  // a list, also of none

  // RoPE's own keys: rope_theta, rope_type, factor, ...
  ConfigKeys rope() const;
  // Of RoPE's keys: those of an object among them, which must be there. (RoPE by kind of layer.)
  ConfigKeys rope_part(const char* key) const;

  // The same, with values for keys that are absent. `defaults`: a JSON object, without RoPE's keys.
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
  bool rope_;         // looks up RoPE's keys instead of the top level's
  std::string part_;  // of RoPE's keys; empty: themselves
};

}  // namespace nvllm::model
