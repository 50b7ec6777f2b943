#include "tokenizer/regex/regex_class.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

namespace nvllm::tokenizer {
namespace {

constexpr int kMaxClassDepth = 20;  // of nested [classes]

constexpr std::array<std::string_view, 30> kCategoryNames = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

constexpr std::array<std::pair<std::string_view, char>, 7> kLongNames = {{{"Letter", 'L'},
                                                                          {"Mark", 'M'},
                                                                          {"Number", 'N'},
                                                                          {"Punctuation", 'P'},
                                                                          {"Symbol", 'S'},
                                                                          {"Separator", 'Z'},
                                                                          {"Other", 'C'}}};

std::optional<CategoryMask> category_mask(std::string_view name) {
  for (const auto& [long_name, letter] : kLongNames) {
    if (name == long_name) return category_mask(std::string_view(&letter, 1));
  }
  CategoryMask mask = 0;
  for (std::size_t i = 0; i < kCategoryNames.size(); ++i) {
    const bool matches =
        name.size() == 1 ? kCategoryNames[i][0] == name[0] : kCategoryNames[i] == name;
    if (matches) mask |= 1U << i;
  }
  if (mask == 0) return std::nullopt;
  return mask;
}

CharSet category_set(CategoryMask mask, bool negated) {
  CharSet set;
  set.add_categories(mask);
  if (negated) set.negate();
  return set;
}

// A single character, or a set: the meaning of an escape or a plain character.
struct Item {
  std::optional<char32_t> literal;
  CharSet set;
};

Item property(PatternReader& in, bool negated, bool ignore_case) {
  if (!in.accept("{")) in.fail_at("\\p without {");
  if (in.accept("^")) negated = !negated;
  const std::string_view name = in.take_until('}');
  const std::optional<CategoryMask> mask = category_mask(name);
  if (!mask) in.fail_at(str("\\p{", name, "}"));
  constexpr CategoryMask kCased = category_bits(Category::kLu, Category::kLt);
  if (ignore_case && (*mask & kCased) != 0 && (*mask & kCased) != kCased) {
    in.fail_at(str("\\p{", name, "} under (?i)"));
  }
  return {{}, category_set(*mask, negated)};
}

Item flag_item(std::uint16_t flag, bool negated) {
  Item item;
  item.set.add_flags(flag);
  if (negated) item.set.negate();
  return item;
}

// Reads exactly `digits` hexadecimal digits.
char32_t code_point(PatternReader& in, int digits) {
  char32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const char digit = in.peek();
    unsigned nibble = 0;
    if (std::from_chars(&digit, &digit + 1, nibble, 16).ec != std::errc{}) {
      in.fail_at("a number that is not hexadecimal");
    }
    in.take_char();
    value = value << 4 | nibble;
  }
  return value;
}

Item escape(PatternReader& in, bool ignore_case) {
  if (in.done()) in.fail_at("\\ at the end");
  const char32_t c = in.take_char();
  switch (c) {
    case 's': return flag_item(kWhiteSpace, false);
    case 'S': return flag_item(kWhiteSpace, true);
    case 'w': return flag_item(kRegexWord, false);
    case 'W': return flag_item(kRegexWord, true);
    case 'd': return {{}, category_set(category_bit(Category::kNd), false)};
    case 'D': return {{}, category_set(category_bit(Category::kNd), true)};
    case 'p': return property(in, false, ignore_case);
    case 'P': return property(in, true, ignore_case);
    case 'n': return {U'\n', {}};
    case 'r': return {U'\r', {}};
    case 't': return {U'\t', {}};
    case 'f': return {U'\f', {}};
    case 'v': return {U'\v', {}};
    case 'x': return {code_point(in, 2), {}};
    case 'u': return {code_point(in, 4), {}};
    default:
      if (c < 128 && ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
        in.fail_at(str("\\", static_cast<char>(c)));
      }
      return {c, {}};
  }
}

Item take_item(PatternReader& in, bool ignore_case) {
  return in.accept("\\") ? escape(in, ignore_case) : Item{in.take_char(), {}};
}

bool is_cased(char32_t c) {
  return char_record(c).in(category_bits(Category::kLu, Category::kLt));
}

// Adds a character, and under (?i) its case variants, which are implemented for ASCII letters only.
void add_literal(PatternReader& in, CharSet& set, char32_t c, bool ignore_case) {
  set.add_range(c, c);
  if (!ignore_case || !is_cased(c)) return;
  if (c >= 128) in.fail_at("a letter beyond ASCII under (?i)");
  const char32_t lower = c | 0x20;
  set.add_range(lower, lower);
  set.add_range(lower ^ 0x20, lower ^ 0x20);
  if (lower == 's') set.add_range(0x17F, 0x17F);    // long s
  if (lower == 'k') set.add_range(0x212A, 0x212A);  // Kelvin sign
}

void add_range(PatternReader& in, CharSet& set, char32_t first, char32_t last, bool ignore_case) {
  if (last < first) in.fail_at("a range whose end is below its start");
  if (ignore_case) {
    if (last >= 128) in.fail_at("a range beyond ASCII under (?i)");
    for (char32_t c = first; c <= last; ++c) add_literal(in, set, c, true);
  }
  set.add_range(first, last);
}

// Parses a class after its [.
CharSet bracket_class(PatternReader& in, bool ignore_case, int depth) {
  if (depth > kMaxClassDepth) in.fail_at("so many nested [");
  CharSet set;
  const bool negated = in.accept("^");
  bool first = true;
  while (first || in.peek() != ']') {
    if (in.done()) in.fail_at("a [ without ]");
    if (in.accept("&&")) in.fail_at("&& in a class");
    if (in.accept("[:")) in.fail_at("[: in a class");
    first = false;
    if (in.accept("[")) {
      set.add_set(bracket_class(in, ignore_case, depth + 1));
      continue;
    }
    Item item = take_item(in, ignore_case);
    if (!item.literal) {
      set.add_set(std::move(item.set));
      continue;
    }
    const bool dash = in.accept("-");
    if (!dash || in.peek() == ']') {  // a trailing - is literal
      add_literal(in, set, *item.literal, ignore_case);
      if (dash) set.add_range('-', '-');
      continue;
    }
    const Item last = take_item(in, ignore_case);
    if (!last.literal) in.fail_at("a range that ends in a class");
    add_range(in, set, *item.literal, *last.literal, ignore_case);
  }
  in.accept("]");
  if (negated) set.negate();
  return set;
}

}  // namespace

char32_t PatternReader::take_char() {
  if (done()) fail_at("the end here");
  const DecodedChar next = decode_utf8(pattern_.data() + at_);
  at_ += next.size;
  return next.c;
}

std::string_view PatternReader::take_until(char end) {
  const std::size_t found = pattern_.find(end, at_);
  if (found == std::string_view::npos) fail_at(str("a missing ", end));
  const std::string_view text = pattern_.substr(at_, found - at_);
  at_ = found + 1;
  return text;
}

bool PatternReader::accept_interval(int& min, int& max) {
  const char* const end = pattern_.data() + pattern_.size();
  const char* at = pattern_.data() + at_;
  const auto number = [&](int& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value < 0) return false;
    at = next;
    return true;
  };
  if (at == end || *at++ != '{') return false;
  const bool has_min = number(min);
  if (!has_min) min = 0;
  max = min;
  if (at != end && *at == ',') {
    ++at;
    max = -1;
    if (!number(max) && !has_min) return false;
  } else if (!has_min) {
    return false;
  }
  if (at == end || *at++ != '}') return false;
  at_ = static_cast<std::size_t>(at - pattern_.data());
  return true;
}

ParsedClass parse_class(PatternReader& in, bool ignore_case) {
  ParsedClass parsed;
  if (in.accept(".")) {
    parsed.set.add_range('\n', '\n');
    parsed.set.negate();
  } else if (in.accept("[")) {
    parsed.set = bracket_class(in, ignore_case, 0);
  } else {
    Item item = take_item(in, ignore_case);
    if (item.literal) {
      add_literal(in, parsed.set, *item.literal, ignore_case);
      if (ignore_case && is_cased(*item.literal)) parsed.folded_literal = *item.literal | 0x20;
    } else {
      parsed.set = std::move(item.set);
    }
  }
  parsed.set.finish();
  return parsed;
}

}  // namespace nvllm::tokenizer
