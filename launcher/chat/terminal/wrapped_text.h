// WrappedText: breaks a text that comes in pieces into lines between its words, at the width of the
// terminal that it is written to. Every piece can be shown at once: a word that turns out not to
// fit is erased where its beginning stands, and written again in the next line.
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
  // columns: of the terminal, now; it may change. 0: nothing is broken, the text passes unchanged.
  // The cursor is at the beginning of a line.
  explicit WrappedText(std::function<std::size_t()> columns) : columns_of_(std::move(columns)) {}

  // What to write for the next piece, which ends with a whole character. Sequences that begin with
  // an escape character and end with 'm' (colours) take no column.
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
  std::string word_;         // that stands before the cursor, with its colours
  std::size_t word_columns_ = 0;
  std::size_t word_at_ = 0;          // where it begins in out_; npos: it is written already
  std::size_t cluster_columns_ = 0;  // of the last cluster, which may grow
  bool wide_ = false;                // the word is a wide character: another one begins a new word
  ClusterReader clusters_;
  std::string out_;
};

// The columns of the terminal that a file descriptor is; 80 if it does not say.
struct WindowSize {
  std::size_t rows = 24, columns = 80;
  bool operator==(const WindowSize&) const = default;
};
WindowSize window_size(int fd);

}  // namespace nvllm::launcher
