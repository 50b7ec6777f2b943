#include "launcher/chat/terminal/terminal_text.h"

#include <locale.h>
#include <sys/ioctl.h>
#include <wchar.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/text.h"
#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {
namespace {

using tokenizer::Category;

constexpr char32_t kJoiner = 0x200D, kEmojiStyle = 0xFE0F;

struct CharRange {
  char32_t first, last;
};

// The characters with Unicode's property Extended_Pictographic, in blocks: letters and arrows
// between them are never followed by a joiner, so including them is harmless.
constexpr CharRange kPictographs[] = {
    {0x00A9, 0x00A9}, {0x00AE, 0x00AE},   {0x203C, 0x203C},   {0x2049, 0x2049},  {0x2122, 0x2122},
    {0x2139, 0x2139}, {0x2194, 0x21AA},   {0x231A, 0x23FF},   {0x24C2, 0x24C2},  {0x25AA, 0x25FE},
    {0x2600, 0x27BF}, {0x2934, 0x2935},   {0x2B05, 0x2B55},   {0x3030, 0x3030},  {0x303D, 0x303D},
    {0x3297, 0x3299}, {0x1F000, 0x1F1E5}, {0x1F200, 0x1F3FA}, {0x1F400, 0x1FAFF}};

bool is_pictograph(char32_t c) {
  return std::any_of(std::begin(kPictographs), std::end(kPictographs),
                     [c](const CharRange& range) { return c >= range.first && c <= range.last; });
}

bool is_regional_indicator(char32_t c) {
  return c >= 0x1F1E6 && c <= 0x1F1FF;
}

// Marks, joiners, skin tones, and the tags of a region's flag.
bool extends(char32_t c) {
  constexpr auto kMarks = tokenizer::category_bits(Category::kMn, Category::kMe);
  if (c == kJoiner || c == 0x200C) return true;
  if ((c >= 0x1F3FB && c <= 0x1F3FF) || (c >= 0xE0020 && c <= 0xE007F)) return true;
  return c >= 0x300 && tokenizer::char_record(c).in(kMarks);
}

bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0);
}

// Parts of a Hangul syllable.
enum class Hangul { none, leading, vowel, trailing, open, closed };

Hangul hangul_of(char32_t c) {
  if ((c >= 0x1100 && c <= 0x115F) || (c >= 0xA960 && c <= 0xA97C)) return Hangul::leading;
  if ((c >= 0x1160 && c <= 0x11A7) || (c >= 0xD7B0 && c <= 0xD7C6)) return Hangul::vowel;
  if ((c >= 0x11A8 && c <= 0x11FF) || (c >= 0xD7CB && c <= 0xD7FB)) return Hangul::trailing;
  if (c >= 0xAC00 && c <= 0xD7A3) return (c - 0xAC00) % 28 == 0 ? Hangul::open : Hangul::closed;
  return Hangul::none;
}

bool one_syllable(char32_t before, char32_t c) {
  const Hangul a = hangul_of(before), b = hangul_of(c);
  if (b == Hangul::none || b == Hangul::leading || b == Hangul::open || b == Hangul::closed) {
    return b != Hangul::none && a == Hangul::leading;
  }
  const bool takes_vowel = a == Hangul::open || a == Hangul::vowel;
  if (b == Hangul::vowel) return a == Hangul::leading || takes_vowel;
  return takes_vowel || a == Hangul::closed || a == Hangul::trailing;
}

// The width according to the C library.
std::size_t columns_of_char(char32_t c) {
  if (c < 0x20) return 0;
  if (c < 0x300) return 1;
  static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) return 1;
  const locale_t own = ::uselocale(utf8);
  const int width = ::wcwidth(static_cast<wchar_t>(c));
  ::uselocale(own);
  return width < 0 ? 1 : static_cast<std::size_t>(width);
}

constexpr std::size_t kTab = 8;

// Punctuation that may not start a line of Chinese or Japanese.
bool ends_phrase(char32_t c) {
  return std::u32string_view(
             U"\u3001\u3002\uFF0C\uFF0E\uFF01\uFF1F\uFF1A\uFF1B\uFF09\u300D\u300F"
             U"\u3011\u3009\u300B\u30FC")
             .find(c) != std::u32string_view::npos;
}

}  // namespace

bool ClusterReader::push(char32_t c) {
  const char32_t before = last_;
  last_ = c;
  const bool joined = before == kJoiner && pictograph_ && is_pictograph(c);
  const bool flag = flag_half_ && is_regional_indicator(c);
  const bool extended = before != 0 && !is_control(before) && extends(c);
  if (joined || flag || extended || one_syllable(before, c)) {
    if (flag || (c == kEmojiStyle && pictograph_)) width_ = 2;
    const bool spacing = c >= 0x300 && tokenizer::char_record(c).category ==
                                           static_cast<std::uint8_t>(Category::kMc);
    if (spacing) width_ += columns_of_char(c);
    flag_half_ = false;
    return false;
  }
  width_ = columns_of_char(c);
  pictograph_ = is_pictograph(c);
  flag_half_ = is_regional_indicator(c);
  return true;
}

std::size_t next_cluster(std::string_view text, std::size_t at) {
  ClusterReader reader;
  std::size_t end = at;
  while (end < text.size()) {
    const auto [c, size] = tokenizer::decode_utf8(text.data() + end);
    if (reader.push(c) && end > at) break;
    end += size;
  }
  return end;
}

std::size_t previous_cluster(std::string_view text, std::size_t at) {
  if (at == 0) return 0;
  // Clusters can only be found from a known boundary; a newline is one.
  const std::size_t newline = at < 2 ? text.npos : text.rfind('\n', at - 2);
  std::size_t begin = newline == text.npos ? 0 : newline + 1;
  while (true) {
    const std::size_t end = next_cluster(text, begin);
    if (end >= at) return begin;
    begin = end;
  }
}

std::size_t columns_of(std::string_view text) {
  ClusterReader reader;
  std::size_t columns = 0, before = 0;
  tokenizer::for_each_char(text, [&](char32_t c, std::string_view) {
    if (reader.push(c)) before = columns;
    columns = before + reader.width();
  });
  return columns;
}

bool is_wide(char32_t c) {
  return c >= 0x1100 && columns_of_char(c) == 2;
}

std::string WrappedText::push(std::string_view piece) {
  columns_ = columns_of_();
  if (columns_ == 0) return std::string(piece);
  out_.clear();
  word_at_ = word_columns_ > 0 ? std::string::npos : 0;
  while (!piece.empty()) {
    if (piece.front() == '\033') {
      const std::size_t size = std::min(piece.find('m'), piece.size() - 1) + 1;
      out_ += piece.substr(0, size);
      if (word_columns_ > 0) word_ += piece.substr(0, size);
      if (word_columns_ == 0) word_at_ = out_.size();
      piece.remove_prefix(size);
      continue;
    }
    const auto [c, size] = tokenizer::decode_utf8(piece.data());
    push_char(c, piece.substr(0, size));
    piece.remove_prefix(size);
  }
  return std::exchange(out_, {});
}

void WrappedText::push_char(char32_t c, std::string_view bytes) {
  if (c == '\n') return break_line();
  if (c == ' ') return push_space(1);
  if (c == '\t') return push_space(kTab - column_ % kTab);
  if (c < 0x20 || c == 0x7F) return;  // no character that moves the cursor
  const bool begins = clusters_.push(c);
  if (!begins) {
    // The current cluster may have become wider.
    const std::size_t wider = clusters_.width() - std::min(clusters_.width(), cluster_columns_);
    cluster_columns_ += wider;
    column_ += wider;
    word_columns_ += wider;
    word_ += bytes;
    out_ += bytes;
    return;
  }
  const bool wide = is_wide(c);
  if ((wide || wide_) && !ends_phrase(c)) end_word();
  wide_ = wide;
  cluster_columns_ = clusters_.width();
  if (column_ + cluster_columns_ > columns_) {
    const bool whole_line = word_columns_ + cluster_columns_ > columns_ || word_columns_ == column_;
    if (whole_line) {  // a word longer than a line is broken by the terminal
      end_word();
    } else {
      move_word();
    }
    column_ = word_columns_;
  }
  column_ += cluster_columns_;
  word_columns_ += cluster_columns_;
  word_ += bytes;
  out_ += bytes;
}

void WrappedText::move_word() {
  if (word_at_ != std::string::npos) {
    out_.resize(word_at_);
  } else if (word_columns_ > 0) {
    // Uses an absolute column: after the last column, terminals disagree on the start of a relative
    // movement.
    out_ += str("\033[", column_ - word_columns_ + 1, "G\033[K");
  }
  out_ += '\n';
  word_at_ = out_.size();
  out_ += word_;
}

void WrappedText::end_word() {
  word_.clear();
  word_columns_ = 0;
  word_at_ = out_.size();
}

// Spaces that do not fit are dropped: the next word starts a line.
void WrappedText::push_space(std::size_t count) {
  const std::size_t fitting = std::min(count, columns_ - std::min(columns_, column_));
  out_.append(fitting, ' ');
  column_ += fitting;
  end_word();
  wide_ = false;
  clusters_ = {};
}

void WrappedText::break_line() {
  out_ += '\n';
  column_ = 0;
  end_word();
  wide_ = false;
  clusters_ = {};
}

WindowSize window_size(int fd) {
  winsize window{};
  if (::ioctl(fd, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 || window.ws_row == 0) return {};
  return {.rows = window.ws_row, .columns = window.ws_col};
}

}  // namespace nvllm::launcher
