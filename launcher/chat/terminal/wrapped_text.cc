#include "launcher/chat/terminal/wrapped_text.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kTab = 8;

// Punctuation that may not start a line of Chinese or Japanese.
bool ends_phrase(char32_t c) {
  return std::u32string_view(
             U"\u3001\u3002\uFF0C\uFF0E\uFF01\uFF1F\uFF1A\uFF1B\uFF09\u300D\u300F"
             U"\u3011\u3009\u300B\u30FC")
             .find(c) != std::u32string_view::npos;
}

}  // namespace

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
