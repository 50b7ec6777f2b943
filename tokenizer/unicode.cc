#include "tokenizer/unicode.h"

#include <algorithm>
#include <iterator>

namespace nvllm::tokenizer {
namespace {

struct Composition {
  char32_t first, second, composed;
};

#include "tokenizer/unicode_tables.inc"

// The text of c in a table made of sorted characters, ends of texts, and texts.
template <std::size_t kCount, std::size_t kEnds, std::size_t kPool>
std::u32string_view find_text(const char32_t (&from)[kCount], const std::uint16_t (&ends)[kEnds],
                              const char32_t (&pool)[kPool], char32_t c) {
  const auto* found = std::lower_bound(std::begin(from), std::end(from), c);
  if (found == std::end(from) || *found != c) return {};
  const auto index = found - std::begin(from);
  return {pool + ends[index], static_cast<std::size_t>(ends[index + 1] - ends[index])};
}

}  // namespace

const CharRecord& char_record(char32_t c) {
  return kRecords[kStage2[kStage1[kStage0[c >> 12] << 5 | (c >> 7 & 31)] << 7 | (c & 127)]];
}

std::u32string_view canonical_decomposition(char32_t c) {
  if (!char_record(c).has(kCanonical)) return {};
  return find_text(kCanonicalFrom, kCanonicalEnd, kCanonicalTo, c);
}

std::u32string_view compat_decomposition(char32_t c) {
  if (!char_record(c).has(kCompat)) return {};
  const std::u32string_view text = find_text(kCompatFrom, kCompatEnd, kCompatTo, c);
  return text.empty() ? canonical_decomposition(c) : text;
}

std::u32string_view lower_case(char32_t c) {
  if (!char_record(c).has(kLower)) return {};
  return find_text(kLowerFrom, kLowerEnd, kLowerTo, c);
}

char32_t composition(char32_t first, char32_t second) {
  const auto before = [](const Composition& a, const Composition& b) {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
  };
  const Composition wanted{first, second, 0};
  const auto* found =
      std::lower_bound(std::begin(kCompositions), std::end(kCompositions), wanted, before);
  if (found == std::end(kCompositions) || found->first != first || found->second != second)
    return 0;
  return found->composed;
}

}  // namespace nvllm::tokenizer
