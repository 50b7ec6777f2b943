// Screen: emulates a terminal: what it shows for the bytes that a program writes, including lines
// that have scrolled off its top. It supports the sequences that the chat uses.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/chat/terminal/terminal_text.h"

namespace nvllm::testing {

class Screen {
 public:
  Screen(std::size_t rows, std::size_t columns) : columns_(columns), lines_(rows) {}

  // Incomplete characters or sequences at the end wait for the rest.
  void write(std::string_view bytes);

  // All lines, including those that have scrolled off; without trailing spaces and trailing empty
  // lines.
  std::vector<std::string> lines() const;
  std::string text() const;  // the same, joined by newlines
  std::size_t scrolled() const { return scrolled_.size(); }
  // Cursor position, from 0.
  std::size_t row() const { return row_; }
  std::size_t column() const { return column_; }

 private:
  struct Cell {
    std::string cluster;
    std::size_t width = 1;
  };
  using Line = std::vector<Cell>;

  std::size_t sequence(std::string_view bytes);  // its size; 0: incomplete
  void put(std::string_view character);
  void new_line();
  static std::string text_of(const Line& line);

  std::size_t columns_;
  std::vector<Line> lines_;  // of the window
  std::vector<Line> scrolled_;
  std::size_t row_ = 0, column_ = 0;
  bool pending_wrap_ = false;  // the last column is written, and the next character starts a line
  std::string waiting_;
  launcher::ClusterReader clusters_;
};

}  // namespace nvllm::testing
