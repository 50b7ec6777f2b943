#include "launcher/cli/option_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <optional>

namespace nvllm::launcher {

namespace {

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<double> parse_real(std::string_view text) {
  const auto number = parse_number<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// A number without exponent: 0.5, 1000000; never 1e+06.
std::string plain(double number) {
  std::array<char, 400> text;
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  return {text.data(), end.ptr};
}

// The multiplier of a suffix; 0: unknown. Lower-case letters count in thousands, upper-case ones in
// 1024s, as in vLLM.
double factor_of(char suffix) {
  constexpr std::string_view kThousands = "kmgt", kBinary = "KMGT";
  if (const auto i = kThousands.find(suffix); i != std::string_view::npos) {
    return std::pow(1000.0, static_cast<double>(i + 1));
  }
  if (const auto i = kBinary.find(suffix); i != std::string_view::npos) {
    return std::pow(1024.0, static_cast<double>(i + 1));
  }
  return 0;
}

}  // namespace

std::int64_t OptionValue::whole(std::int64_t min, std::int64_t max) const {
  const auto number = parse_number<std::int64_t>(text_);
  if (!number) refuse(name_, " '", text_, "': not a whole number; pass ", min, " to ", max);
  if (*number < min || *number > max) {
    refuse(name_, ' ', text_, ": out of range; pass ", min, " to ", max);
  }
  return *number;
}

double OptionValue::real(double min, double max) const {
  const auto number = parse_real(text_);
  if (!number) {
    refuse(name_, " '", text_, "': not a number; pass ", plain(min), " to ", plain(max));
  }
  if (*number < min || *number > max) {
    refuse(name_, ' ', text_, ": out of range; pass ", plain(min), " to ", plain(max));
  }
  return *number;
}

Nanoseconds OptionValue::seconds(double min, double max) const {
  const auto number = parse_real(text_);
  if (!number) {
    refuse(name_, " '", text_, "': not a number of seconds; pass one such as 2 or 0.5");
  }
  if (*number < min || *number > max) {
    refuse(name_, ' ', text_, ": out of range; pass ", plain(min), " to ", plain(max), " seconds");
  }
  return Nanoseconds(static_cast<std::int64_t>(*number * 1e9));
}

std::int64_t OptionValue::amount(std::int64_t min, std::int64_t max) const {
  double factor = text_.empty() ? 0 : factor_of(text_.back());
  const std::string_view digits = factor > 0 ? text_.substr(0, text_.size() - 1) : text_;
  if (factor == 0) factor = 1;
  const auto number = parse_real(digits);
  const double value = number ? *number * factor : 0;
  if (!number || std::floor(value) != value) {
    refuse(name_, " '", text_, "': not a number such as 4096, 32k, 512M or 4G");
  }
  if (value < static_cast<double>(min) || value > static_cast<double>(max)) {
    refuse(name_, ' ', text_, ": out of range; pass ", min, " to ", max);
  }
  return static_cast<std::int64_t>(value);
}

std::vector<std::int32_t> OptionValue::ids() const {
  return numbers("token id; pass ids such as 1,2,3");
}

std::vector<std::int32_t> OptionValue::numbers(std::string_view what) const {
  std::vector<std::int32_t> numbers;
  std::size_t begin = 0;
  while (true) {
    const std::size_t comma = text_.find(',', begin);
    const std::string_view word = text_.substr(begin, comma - begin);
    const auto number = parse_number<std::int32_t>(word);
    if (!number || *number < 0) refuse(name_, " '", text_, "': '", word, "' is no ", what);
    numbers.push_back(*number);
    if (comma == std::string_view::npos) return numbers;
    begin = comma + 1;
  }
}

std::string OptionValue::path(std::string_view fix) const {
  if (text_.empty()) refuse(name_, " '': pass ", fix);
  return std::string(text_);
}

void OptionValue::refuse_choice(std::string_view what,
                                const std::vector<std::string_view>& names) const {
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    list += str(i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i]);
  }
  refuse(name_, " '", text_, "': no such ", what, "; pass ", list);
}

namespace {

// Whether a placeholder is a literal word, like "prefill-first", "bash"; not like "N" or "A:B".
bool stands_for_itself(std::string_view word) {
  return std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

bool is_text(std::string_view word) {
  constexpr std::string_view kTexts[] = {"TEXT", "URL", "PATH", "NAME", "KEY"};
  return std::find(std::begin(kTexts), std::end(kTexts), word) != std::end(kTexts);
}

void add_alternative(ValueShape& shape, std::string_view alternative) {
  if (alternative == "FILE" || alternative == "MODEL") {
    shape.file = true;
  } else if (alternative == "JSON") {
    shape.json = true;
  } else if (alternative.find(',') != alternative.npos) {
    shape.list = true;
  } else if (stands_for_itself(alternative)) {
    shape.choices.emplace_back(alternative);
  } else if (!is_text(alternative)) {
    shape.number = true;
  }
}

}  // namespace

ValueShape shape_of(std::string_view placeholder) {
  ValueShape shape;
  while (true) {
    const std::size_t bar = placeholder.find('|');
    add_alternative(shape, placeholder.substr(0, bar));
    if (bar == placeholder.npos) return shape;
    placeholder.remove_prefix(bar + 1);
  }
}

}  // namespace nvllm::launcher
