// The only reader for JSON from untrusted sources: configurations, file headers, input lines,
// request bodies. Its limits are enforced during parsing, before memory is allocated; its time is
// linear in the text, so the limit on bytes also limits time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace nvllm {

struct JsonLimits {
  std::size_t max_bytes = std::size_t{128} << 20;
  std::size_t max_depth = 64;
  std::size_t max_values = std::size_t{1} << 21;  // mainly for the numbers of a prompt
  std::size_t max_keys = 1024;                    // per object
  bool repeated_names = false;    // an object may have duplicate names; the last one is used
  const char* position = "byte";  // the unit of positions in errors
};

// The message describes the problem; field() is the name in the outermost object that contains it,
// "" if there is none.
class BadJson : public Error {
 public:
  enum class Kind : std::uint8_t { syntax, number, depth, size, repeated_name };

  BadJson(Kind kind, const std::string& message, std::string field = "", std::size_t byte = 0)
      : Error(message), kind_(kind), field_(std::move(field)), byte_(byte) {}
  Kind kind() const { return kind_; }
  const std::string& field() const { return field_; }
  std::size_t byte() const { return byte_; }  // of a syntax error: its position, from 1

 private:
  Kind kind_;
  std::string field_;
  std::size_t byte_;
};

// Receives the values in the order of the text. Derive from it to build other values than
// nlohmann's.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual void null() = 0;
  virtual void boolean(bool value) = 0;
  virtual void integer(std::int64_t value) = 0;
  virtual void unsigned_integer(std::uint64_t value) = 0;  // where it is not negative
  virtual void real(double value) = 0;
  virtual void string(std::string value) = 0;
  virtual void begin_object() = 0;
  virtual void begin_list() = 0;
  virtual bool key(std::string name) = 0;  // false: the object already has it
  virtual void end() = 0;                  // of the innermost open object or list
};

// Throws BadJson for invalid JSON or UTF-8, for a number outside the range of double, for a
// duplicate name in an object, and if a limit is exceeded.
void read_bounded_json(std::string_view text, const JsonLimits& limits, JsonHandler& handler);
nlohmann::json read_bounded_json(std::string_view text, const JsonLimits& limits);

// For configurations: at most kMaxJsonDepth levels; duplicate names are allowed. BadJson names
// `where` and the line and column.
inline constexpr int kMaxJsonDepth = 32;
nlohmann::json parse_nested_json(std::string_view text, const std::string& where);

// A form of untrusted text for messages: its first characters, on one line, with control characters
// made visible (base/visible_text.h).
std::string shown_text(std::string_view text, std::size_t max_bytes = 60);

}  // namespace nvllm
