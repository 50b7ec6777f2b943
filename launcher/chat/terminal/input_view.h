// InputView: draws a text being edited, with its cursor, on a terminal. Lines are broken between
// words. If a text has more lines than the window, only those around the cursor are shown, so that
// rows to be redrawn have not scrolled away.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/chat/terminal/terminal_text.h"

namespace nvllm::launcher {

// A row of the screen: its range of the text, without the newline after it.
struct InputRow {
  std::size_t begin = 0, end = 0;
};
// The rows of a text, of at most `columns` columns each (at least 1), plus possibly a space.
std::vector<InputRow> lay_out(std::string_view text, std::size_t columns);

// Not thread-safe.
class InputView {
 public:
  // The bytes with which the terminal shows this prompt and text in place of the previous ones.
  std::string draw(std::string_view prompt, std::string_view text, std::size_t cursor,
                   const WindowSize& window);
  // The same for the last time: all rows, even more than the window has, and a new line below.
  std::string finish(std::string_view prompt, std::string_view text, const WindowSize& window);
  // What was drawn is gone; the cursor is at the start of a line.
  void forget();

 private:
  std::string go_to_top(const WindowSize& window) const;

  std::vector<std::size_t> above_;  // widths of the rows above the cursor, as drawn
  std::size_t cursor_column_ = 0;
  std::size_t top_ = 0;  // the first row shown
};

}  // namespace nvllm::launcher
