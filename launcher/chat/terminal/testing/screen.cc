#include "launcher/chat/terminal/testing/screen.h"

#include <algorithm>
#include <cstdlib>

#include "tokenizer/unicode/utf8.h"

namespace nvllm::testing {

void Screen::write(std::string_view bytes) {
  waiting_ += bytes;
  std::string_view left = waiting_;
  while (!left.empty()) {
    std::size_t size = tokenizer::utf8_size(left.front());
    if (left.front() == '\033') {
      size = sequence(left);
      if (size == 0) break;
    } else if (size > left.size()) {
      break;
    } else {
      put(left.substr(0, size));
    }
    left.remove_prefix(size);
  }
  waiting_ = std::string(left);
}

std::size_t Screen::sequence(std::string_view bytes) {
  const auto final = [](char c) { return c >= 0x40 && c <= 0x7E; };
  const std::size_t end = static_cast<std::size_t>(
      std::find_if(bytes.begin() + std::min<std::ptrdiff_t>(2, std::ssize(bytes)), bytes.end(),
                   final) -
      bytes.begin());
  if (end >= bytes.size()) return 0;
  const std::string numbers(bytes.substr(2, end - 2));
  const auto count = static_cast<std::size_t>(std::max(1, std::atoi(numbers.c_str())));
  const bool all = numbers == "2";
  clusters_ = {};
  switch (bytes[end]) {
    case 'A': row_ -= std::min(row_, count); break;
    case 'B': row_ = std::min(row_ + count, lines_.size() - 1); break;
    case 'C': column_ = std::min(column_ + count, columns_ - 1); break;
    case 'D': column_ -= std::min(column_, count); break;
    case 'G': column_ = std::min(count - 1, columns_ - 1); break;
    case 'H': row_ = column_ = 0; break;
    case 'J':
      for (std::size_t row = all ? 0 : row_ + 1; row < lines_.size(); ++row) lines_[row].clear();
      [[fallthrough]];
    case 'K': lines_[row_].resize(std::min(lines_[row_].size(), column_)); break;
    default: return end + 1;  // colours and modes move nothing
  }
  pending_wrap_ = false;
  return end + 1;
}

void Screen::new_line() {
  pending_wrap_ = false;
  if (row_ + 1 < lines_.size()) {
    ++row_;
    return;
  }
  scrolled_.push_back(std::move(lines_.front()));
  lines_.erase(lines_.begin());
  lines_.emplace_back();
}

void Screen::put(std::string_view character) {
  if (character == "\r") {
    column_ = 0;
    pending_wrap_ = false;
    clusters_ = {};
    return;
  }
  if (character == "\n") {
    clusters_ = {};
    return new_line();
  }
  const bool begins = clusters_.push(tokenizer::decode_utf8(character.data()).c);
  const std::size_t width = std::max<std::size_t>(clusters_.width(), 1);
  if (!begins && column_ > 0) {
    // The cluster's first cell is before its own second one, if it has two.
    std::size_t at = std::min(pending_wrap_ ? columns_ - 1 : column_ - 1, lines_[row_].size() - 1);
    while (at > 0 && lines_[row_][at].width == 0) --at;
    Cell& cell = lines_[row_][at];
    cell.cluster += character;
    if (width > cell.width && cell.width == 1) {
      cell.width = 2;
      lines_[row_].resize(std::max(lines_[row_].size(), at + 2), Cell{" "});
      lines_[row_][at + 1] = {"", 0};
      column_ = std::min(at + 2, columns_ - 1);
    }
    return;
  }
  if (pending_wrap_ || column_ + width > columns_) {
    column_ = 0;
    new_line();
  }
  Line& line = lines_[row_];
  if (line.size() < column_ + width) line.resize(column_ + width, Cell{" "});
  line[column_] = {std::string(character), width};
  if (width == 2) line[column_ + 1] = {"", 0};
  column_ += width;
  if (column_ < columns_) return;
  column_ = columns_ - 1;
  pending_wrap_ = true;
}

std::string Screen::text_of(const Line& line) {
  std::string text;
  for (const Cell& cell : line) text += cell.cluster;
  return text.erase(text.find_last_not_of(' ') + 1);
}

std::vector<std::string> Screen::lines() const {
  std::vector<std::string> all;
  for (const Line& line : scrolled_) all.push_back(text_of(line));
  for (const Line& line : lines_) all.push_back(text_of(line));
  while (!all.empty() && all.back().empty()) all.pop_back();
  return all;
}

std::string Screen::text() const {
  std::string all;
  for (const std::string& line : lines()) all += (all.empty() ? "" : "\n") + line;
  return all;
}

}  // namespace nvllm::testing
