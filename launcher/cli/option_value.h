// OptionValue: one option as it was given. It turns the text into what a command stores, and refuses
// what it cannot, always in the same words: the option, its value, the mend.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace nvllm::launcher {

// A command line that cannot be followed. One line: the thing, its value, the mend.
class UsageError : public Error {
 public:
  using Error::Error;
};

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw UsageError(str(parts...));
}

class OptionValue {
 public:
  // Both must outlive it. name: as it was written.
  OptionValue(std::string_view name, std::string_view text) : name_(name), text_(text) {}

  std::string_view name() const { return name_; }
  std::string_view text() const { return text_; }

  // Of a switch: whether it was given by its own name, not by the one that begins with "--no-".
  bool on() const { return !name_.starts_with("--no-"); }

  // All of them throw UsageError; both ends are allowed values.
  std::int64_t whole(std::int64_t least, std::int64_t most) const;
  double real(double least, double most) const;
  Nanoseconds seconds(double least, double most) const;
  // 4096, 32k (thousands), 32K (of 1024), 4G, 1.5M: a count or a size.
  std::int64_t amount(std::int64_t least, std::int64_t most) const;
  // "1,2,3"; at least one, none below 0. `what` they are, and what to pass instead of others.
  std::vector<std::int32_t> ids() const;
  std::vector<std::int32_t> numbers(std::string_view what) const;
  // A path or the like; `mend` says what to pass instead of nothing.
  std::string path(std::string_view mend) const;

  template <typename Choice>
  Choice one_of(std::string_view what,
                std::initializer_list<std::pair<std::string_view, Choice>> choices) const {
    std::vector<std::string_view> names;
    for (const auto& choice : choices) {
      if (choice.first == text_) return choice.second;
      names.push_back(choice.first);
    }
    refuse_choice(what, names);
  }

  template <typename Number>
  Number as(std::int64_t least, std::int64_t most = std::numeric_limits<Number>::max()) const {
    return static_cast<Number>(whole(least, most));
  }

 private:
  [[noreturn]] void refuse_choice(std::string_view what,
                                  const std::vector<std::string_view>& names) const;

  std::string_view name_, text_;
};

}  // namespace nvllm::launcher
