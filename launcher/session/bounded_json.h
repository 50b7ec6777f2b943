// JSON that a stranger wrote, as the body of a request or a line of input, with bounds on what it
// may cost: they hold while it is read, before memory is spent.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nvllm::launcher {

struct JsonLimits {
  std::size_t max_depth = 64;
  std::size_t max_values = std::size_t{1} << 21;  // numbers of a prompt, mostly
  std::size_t max_keys = 1024;                    // of one object
  const char* position = "byte";                  // what a place in the text is called
};

// The message says what is wrong; field() is the name in the outermost object in which it is, ""
// outside of all.
class BadJson : public Error {
 public:
  BadJson(const std::string& message, std::string field)
      : Error(message), field_(std::move(field)) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

// Throws BadJson for what is no JSON or not UTF-8, for a number that no double holds, a name that
// is twice in an object, and for more than the limits allow.
nlohmann::json read_bounded_json(std::string_view text, const JsonLimits& limits);

}  // namespace nvllm::launcher
