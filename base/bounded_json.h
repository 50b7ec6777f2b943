// The one reader of JSON that strangers wrote: configurations, headers of files, lines of input,
// bodies of requests. Its bounds hold while it reads, before memory is spent; its time is linear in
// the text, so the bound on bytes is one on time, too.
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
  std::size_t max_values = std::size_t{1} << 21;  // numbers of a prompt, mostly
  std::size_t max_keys = 1024;                    // of one object
  bool repeated_names = false;    // a name may be twice in an object; the last counts
  const char* position = "byte";  // what a place in the text is called
};

// The message says what is wrong; field() is the name in the outermost object in which it is, ""
// outside of all.
class BadJson : public Error {
 public:
  enum class Kind : std::uint8_t { syntax, number, depth, size, repeated_name };

  BadJson(Kind kind, const std::string& message, std::string field = "", std::size_t byte = 0)
      : Error(message), kind_(kind), field_(std::move(field)), byte_(byte) {}
  Kind kind() const { return kind_; }
  const std::string& field() const { return field_; }
  std::size_t byte() const { return byte_; }  // of a syntax error: where it is, from 1

 private:
  Kind kind_;
  std::string field_;
  std::size_t byte_;
};

// Takes the values in the order of the text. Who builds something else than nlohmann's values of
// JSON derives from it.
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
  virtual bool key(std::string name) = 0;  // false: the object has it already
  virtual void end() = 0;                  // of the object or list that began last
};

// Throws BadJson for what is no JSON or not UTF-8, for a number that no double holds, for a name
// that is twice in an object, and for more than the limits allow.
void read_bounded_json(std::string_view text, const JsonLimits& limits, JsonHandler& handler);
nlohmann::json read_bounded_json(std::string_view text, const JsonLimits& limits);

// For configurations: of at most kMaxJsonDepth levels, names may be there twice. BadJson names
// `where` and the line and column.
inline constexpr int kMaxJsonDepth = 32;
nlohmann::json parse_nested_json(std::string_view text, const std::string& where);

// What a message shows of a text that a stranger wrote: its first characters, on one line, with
// everything visible (base/visible_text.h).
std::string shown_text(std::string_view text, std::size_t max_bytes = 60);

}  // namespace nvllm
