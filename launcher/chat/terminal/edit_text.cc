#include "launcher/chat/terminal/edit_text.h"

#include <algorithm>
#include <utility>

#include "base/visible_text.h"
#include "launcher/chat/terminal/terminal_text.h"
#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n';
}

// Words as Alt-B and Alt-F know them: letters, digits and what is written with them.
bool in_word(std::string_view text, std::size_t at) {
  const char32_t c = tokenizer::decode_utf8(text.data() + at).c;
  if (c == '_') return true;
  return tokenizer::char_record(c).in(tokenizer::kLetters | tokenizer::kNumbers);
}

}  // namespace

void EditText::set(std::string text) {
  text_.clear();
  cursor_ = 0;
  insert(text);
}

void EditText::insert(std::string_view text) {
  std::string valid;
  tokenizer::append_valid_utf8(valid, text);
  valid = visible_text(valid, Breaks::keep);
  text_.insert(cursor_, valid);
  move_to(cursor_ + valid.size());
}

void EditText::erase(std::size_t begin, std::size_t end) {
  text_.erase(begin, end - begin);
  move_to(begin);
}

void EditText::move_to(std::size_t at) {
  cursor_ = at;
  wanted_column_.reset();
}

void EditText::left() {
  move_to(previous_cluster(text_, cursor_));
}

void EditText::right() {
  move_to(next_cluster(text_, cursor_));
}

void EditText::word_left() {
  move_to(before_word(cursor_));
}

void EditText::word_right() {
  move_to(behind_word(cursor_));
}

void EditText::line_begin() {
  move_to(begin_of_line(cursor_));
}

void EditText::line_end() {
  move_to(end_of_line(cursor_));
}

bool EditText::up() {
  const std::size_t begin = begin_of_line(cursor_);
  if (begin == 0) return false;
  if (!wanted_column_) wanted_column_ = columns_of({text_.data() + begin, cursor_ - begin});
  move_to_column(begin_of_line(begin - 1));
  return true;
}

bool EditText::down() {
  const std::size_t begin = begin_of_line(cursor_), end = end_of_line(cursor_);
  if (end == text_.size()) return false;
  if (!wanted_column_) wanted_column_ = columns_of({text_.data() + begin, cursor_ - begin});
  move_to_column(end + 1);
  return true;
}

void EditText::move_to_column(std::size_t line_begin) {
  const std::size_t end = end_of_line(line_begin);
  std::size_t at = line_begin, column = 0;
  while (at < end) {
    const std::size_t next = next_cluster(text_, at);
    column += columns_of({text_.data() + at, next - at});
    if (column > *wanted_column_) break;
    at = next;
  }
  cursor_ = at;
}

void EditText::erase_left() {
  erase(previous_cluster(text_, cursor_), cursor_);
}

void EditText::erase_right() {
  erase(cursor_, next_cluster(text_, cursor_));
}

void EditText::erase_word_left() {
  std::size_t at = cursor_;
  while (at > 0 && is_space(text_[at - 1])) --at;
  while (at > 0 && !is_space(text_[at - 1])) --at;
  erase(at, cursor_);
}

void EditText::erase_word_right() {
  erase(cursor_, behind_word(cursor_));
}

void EditText::erase_to_line_begin() {
  erase(begin_of_line(cursor_), cursor_);
}

void EditText::erase_to_line_end() {
  erase(cursor_, end_of_line(cursor_));
}

std::size_t EditText::begin_of_line(std::size_t at) const {
  const std::size_t newline = at == 0 ? std::string::npos : text_.rfind('\n', at - 1);
  return newline == std::string::npos ? 0 : newline + 1;
}

std::size_t EditText::end_of_line(std::size_t at) const {
  return std::min(text_.find('\n', at), text_.size());
}

std::size_t EditText::before_word(std::size_t at) const {
  const auto step = [&](bool word) {
    while (at > 0) {
      const std::size_t before = previous_cluster(text_, at);
      if (in_word(text_, before) != word) break;
      at = before;
    }
  };
  step(false);
  step(true);
  return at;
}

std::size_t EditText::behind_word(std::size_t at) const {
  const auto step = [&](bool word) {
    while (at < text_.size() && in_word(text_, at) == word) at = next_cluster(text_, at);
  };
  step(false);
  step(true);
  return at;
}

}  // namespace nvllm::launcher
