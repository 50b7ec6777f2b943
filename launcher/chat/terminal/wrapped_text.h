// WrappedText: wraps a text that arrives in pieces between its words, at the width of the terminal.
// Every piece can be shown immediately: a word that turns out not to fit is erased and written
// again on the next line.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "launcher/chat/terminal/clusters.h"

namespace nvllm::launcher {

// Not thread-safe.
class WrappedText {
 public:
  // columns: the terminal's current width, which may change. 0: the text passes unchanged. The
  // cursor is at the start of a line.
  explicit WrappedText(std::function<std::size_t()> columns) : columns_of_(std::move(columns)) {}

  // What to write for the next piece, which ends with a complete character. Sequences that start
  // with an escape character and end with 'm' (colours) take no column.
  std::string push(std::string_view piece);

 private:
  void push_char(char32_t c, std::string_view bytes);
  void push_space(std::size_t count);
  void break_line();
  void end_word();
  void move_word();

  std::function<std::size_t()> columns_of_;
  std::size_t columns_ = 0;  // of the terminal, during push()
  std::size_t column_ = 0;   // of the cursor
  std::string word_;         // the word before the cursor, with its colours
  std::size_t word_columns_ = 0;
  std::size_t word_at_ = 0;          // its start in out_; npos: it is already written
  std::size_t cluster_columns_ = 0;  // of the last cluster, which may grow
  bool wide_ = false;                // the word is a wide character: another one starts a new word
  ClusterReader clusters_;
  std::string out_;
};

// The window size of the terminal with this descriptor; 80 columns if unknown.
struct WindowSize {
  std::size_t rows = 24, columns = 80;
  bool operator==(const WindowSize&) const = default;
};
WindowSize window_size(int fd);

}  // namespace nvllm::launcher
