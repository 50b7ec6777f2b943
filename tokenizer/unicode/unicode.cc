#include "tokenizer/unicode/unicode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>

#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

struct Composition {
  char32_t first, second, composed;
};

#include "tokenizer/unicode/unicode_tables.inc"

// Expands compressed tables at compile time: runs (value, count), and differences between
// consecutive numbers.
template <typename T, std::size_t kSize, std::size_t kRuns>
constexpr std::array<T, kSize> expand_runs(const std::uint16_t (&runs)[kRuns]) {
  std::array<T, kSize> values{};
  std::size_t at = 0;
  for (std::size_t i = 0; i < kRuns; i += 2) {
    for (std::size_t n = 0; n < runs[i + 1]; ++n) values[at++] = static_cast<T>(runs[i]);
  }
  return values;
}
template <typename T, typename Step, std::size_t kCount>
constexpr std::array<T, kCount> running_sums(const Step (&steps)[kCount]) {
  std::array<T, kCount> sums{};
  T sum = 0;
  for (std::size_t i = 0; i < kCount; ++i) sums[i] = sum = static_cast<T>(sum + steps[i]);
  return sums;
}

constexpr auto kStage2 = expand_runs<std::uint8_t, kStage2Size>(kStage2Runs);

// A map from characters to texts: the sorted characters, the ends of their texts, and all texts
// concatenated.
template <std::size_t kCount, std::size_t kPool>
struct TextTable {
  std::array<char32_t, kCount> from;
  std::array<std::uint16_t, kCount> ends;
  const char32_t (&pool)[kPool];

  // The text of c; empty if the table has none.
  std::u32string_view find(char32_t c) const {
    const auto found = std::lower_bound(from.begin(), from.end(), c);
    if (found == from.end() || *found != c) return {};
    const auto index = static_cast<std::size_t>(found - from.begin());
    const std::size_t begin = index == 0 ? 0 : ends[index - 1];
    return {pool + begin, ends[index] - begin};
  }
};
template <std::size_t kCount, std::size_t kPool>
constexpr TextTable<kCount, kPool> text_table(const std::uint32_t (&steps)[kCount],
                                              const std::uint8_t (&sizes)[kCount],
                                              const char32_t (&pool)[kPool]) {
  return {running_sums<char32_t>(steps), running_sums<std::uint16_t>(sizes), pool};
}

constexpr auto kCanonicalTexts = text_table(kCanonicalSteps, kCanonicalSizes, kCanonicalTo);
constexpr auto kCompatTexts = text_table(kCompatSteps, kCompatSizes, kCompatTo);
constexpr auto kLowerTexts = text_table(kLowerSteps, kLowerSizes, kLowerTo);

// Hangul syllables are numbered by (leading, vowel, trailing) jamo.
constexpr char32_t kSyllableBase = 0xAC00, kLeadBase = 0x1100, kVowelBase = 0x1161,
                   kTrailBase = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTrails = 28, kSyllables = kLeads * kVowels * kTrails;

bool composes(NormalForm form) {
  return form == NormalForm::kNfc || form == NormalForm::kNfkc;
}
bool is_compat(NormalForm form) {
  return form == NormalForm::kNfkc || form == NormalForm::kNfkd;
}

void append_decomposed(std::u32string& out, char32_t c, bool compat) {
  const char32_t syllable = c - kSyllableBase;
  if (syllable < kSyllables) {
    out.push_back(kLeadBase + syllable / (kVowels * kTrails));
    out.push_back(kVowelBase + syllable / kTrails % kVowels);
    if (syllable % kTrails != 0) out.push_back(kTrailBase + syllable % kTrails);
    return;
  }
  const std::u32string_view text = compat ? compat_decomposition(c) : canonical_decomposition(c);
  if (text.empty()) {
    out += c;
  } else {
    out += text;
  }
}

// Sorts each run of combining marks by class.
void order_marks(std::u32string& text) {
  const auto ccc = [](char32_t c) { return char_record(c).ccc; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (ccc(text[i]) == 0) continue;
    std::size_t end = i + 1;
    while (end < text.size() && ccc(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(i),
                     text.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](char32_t a, char32_t b) { return ccc(a) < ccc(b); });
    i = end;
  }
}

char32_t compose_pair(char32_t first, char32_t second) {
  if (first - kLeadBase < kLeads && second - kVowelBase < kVowels) {
    return kSyllableBase + ((first - kLeadBase) * kVowels + (second - kVowelBase)) * kTrails;
  }
  const char32_t syllable = first - kSyllableBase;
  const char32_t trail = second - kTrailBase;
  if (syllable < kSyllables && syllable % kTrails == 0 && trail > 0 && trail < kTrails) {
    return first + trail;
  }
  return composition(first, second);
}

// Composes each character with the last starter before it, unless a character between them has the
// same or a higher class ("blocked").
void compose(std::u32string& text) {
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t starter = kNone, kept = 0;
  int last_class = -1;  // of the last character kept after the starter; -1: none
  for (const char32_t c : text) {
    const int ccc = char_record(c).ccc;
    if (starter != kNone && last_class < ccc) {
      if (const char32_t composed = compose_pair(text[starter], c)) {
        text[starter] = composed;
        continue;
      }
    }
    if (ccc == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = ccc;
    }
    text[kept++] = c;
  }
  text.resize(kept);
}

// Normalizes a piece that is independent of the text before it.
void append_normalized(std::string& out, std::string_view piece, NormalForm form,
                       std::u32string& scratch) {
  scratch.clear();
  for_each_char(
      piece, [&](char32_t c, std::string_view) { append_decomposed(scratch, c, is_compat(form)); });
  order_marks(scratch);
  if (composes(form)) compose(scratch);
  for (const char32_t c : scratch) append_utf8(out, c);
}

// Whether the form leaves a character unchanged, whatever precedes it.
bool is_stable(char32_t c, NormalForm form) {
  const CharRecord& record = char_record(c);
  switch (form) {
    case NormalForm::kNfc: return !record.has(kNfcUnstable);
    case NormalForm::kNfkc: return !record.has(kNfkcUnstable);
    case NormalForm::kNfd: return record.ccc == 0 && !record.has(kCanonical);
    case NormalForm::kNfkd: return record.ccc == 0 && !record.has(kCompat);
  }
  return false;
}

}  // namespace

const CharRecord& char_record(char32_t c) {
  return kRecords[kStage2[kStage1[kStage0[c >> 12] << 5 | (c >> 7 & 31)] << 7 | (c & 127)]];
}

std::u32string_view canonical_decomposition(char32_t c) {
  if (!char_record(c).has(kCanonical)) return {};
  return kCanonicalTexts.find(c);
}

std::u32string_view compat_decomposition(char32_t c) {
  if (!char_record(c).has(kCompat)) return {};
  const std::u32string_view text = kCompatTexts.find(c);
  return text.empty() ? canonical_decomposition(c) : text;
}

std::u32string_view lower_case(char32_t c) {
  if (!char_record(c).has(kLower)) return {};
  return kLowerTexts.find(c);
}

void append_lower_case(std::string& out, char32_t c) {
  const std::u32string_view lower = lower_case(c);
  if (lower.empty()) append_utf8(out, c);
  for (const char32_t l : lower) append_utf8(out, l);
}

std::size_t skip_white_space(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const DecodedChar next = decode_utf8(text.data() + at);
    if (!is_white_space(next.c)) break;
    at += next.size;
  }
  return at;
}

std::size_t skip_white_space_before(std::string_view text, std::size_t at) {
  while (at > 0) {
    const std::size_t previous = previous_char(text, at);
    if (!is_white_space(decode_utf8(text.data() + previous).c)) break;
    at = previous;
  }
  return at;
}

char32_t composition(char32_t first, char32_t second) {
  const auto pair_of = [](const Composition& c) { return std::pair(c.first, c.second); };
  const std::pair wanted(first, second);
  const auto* found = std::ranges::lower_bound(kCompositions, wanted, {}, pair_of);
  return found == std::end(kCompositions) || pair_of(*found) != wanted ? 0 : found->composed;
}

std::string normalize_unicode(std::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size());
  std::u32string scratch;
  // Text before `done` is written. `boundary` is the start of the last stable character: from there
  // to the next stable character, an unstable one may change the text.
  std::size_t done = 0, boundary = 0, at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {  // stable in every form
      boundary = at++;
      continue;
    }
    const DecodedChar next = decode_utf8(text.data() + at);
    if (is_stable(next.c, form)) {
      boundary = at;
      at += next.size;
      continue;
    }
    std::size_t end = at + next.size;
    while (end < text.size()) {
      const DecodedChar after = decode_utf8(text.data() + end);
      if (is_stable(after.c, form)) break;
      end += after.size;
    }
    out.append(text.substr(done, boundary - done));
    append_normalized(out, text.substr(boundary, end - boundary), form, scratch);
    done = boundary = at = end;
  }
  out.append(text.substr(done));
  return out;
}

}  // namespace nvllm::tokenizer
