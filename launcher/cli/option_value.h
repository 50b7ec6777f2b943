// OptionValue: one option as given by the user. It converts the text to what a command stores, or
// rejects it with a one-line error that names the option, its value and the fix. ValueShape: the
// values that an option accepts.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace nvllm::launcher {

// An invalid command line. The message is one line: option, value, fix.
class UsageError : public Error {
 public:
  using Error::Error;
};

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw UsageError(str(parts...));
}

// Returns the result of `work`; converts its Errors to UsageErrors.
template <typename Work>
auto or_refuse(Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    refuse(error.what());
  }
}

class OptionValue {
 public:
  // Both must outlive it. name: as the user wrote it.
  OptionValue(std::string_view name, std::string_view text) : name_(name), text_(text) {}

  std::string_view name() const { return name_; }
  std::string_view text() const { return text_; }

  // For a switch: false if it was given with the prefix "--no-".
  bool on() const { return !name_.starts_with("--no-"); }

  // These throw UsageError. min and max are inclusive.
  std::int64_t whole(std::int64_t min, std::int64_t max) const;
  double real(double min, double max) const;
  Nanoseconds seconds(double min, double max) const;
  // A count or a size: 4096, 32k (thousands), 32K (of 1024), 4G, 1.5M.
  std::int64_t amount(std::int64_t min, std::int64_t max) const;
  // "1,2,3": at least one number, none negative. `what`: describes the numbers, and what to pass.
  std::vector<std::int32_t> ids() const;
  std::vector<std::int32_t> numbers(std::string_view what) const;
  // A path or similar; `fix` says what to pass instead of an empty text.
  std::string path(std::string_view fix) const;

  template <typename Choice>
  Choice one_of(std::string_view what,
                const std::vector<std::pair<std::string_view, Choice>>& choices) const {
    std::vector<std::string_view> names;
    for (const auto& choice : choices) {
      if (choice.first == text_) return choice.second;
      names.push_back(choice.first);
    }
    refuse_choice(what, names);
  }

  template <typename Number>
  Number as(std::int64_t min, std::int64_t max = std::numeric_limits<Number>::max()) const {
    return static_cast<Number>(whole(min, max));
  }

 private:
  [[noreturn]] void refuse_choice(std::string_view what,
                                  const std::vector<std::string_view>& names) const;

  std::string_view name_, text_;
};

// The values that an option accepts, derived from its placeholder in the help: "N",
// "auto|cpu|cuda", "ID,ID...", "FILE|-". So shell completion and configuration files need no second
// table.
struct ValueShape {
  bool number = false;               // N, SECONDS, BYTES, ...
  bool list = false;                 // of numbers: ID,ID...
  bool file = false;                 // FILE, MODEL
  bool json = false;                 // JSON
  std::vector<std::string> choices;  // literal words: auto, none
};

ValueShape shape_of(std::string_view placeholder);

}  // namespace nvllm::launcher
