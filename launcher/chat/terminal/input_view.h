// InputView: shows a text that is edited, with the cursor in it, on a terminal. Lines are broken
// between words. Of a text with more lines than the window has, only those around the cursor are
// shown, so that nothing that is drawn again has scrolled away.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/chat/terminal/wrapped_text.h"

namespace nvllm::launcher {

// A row of the screen: its part of the text, without the newline behind it.
struct InputRow {
  std::size_t begin = 0, end = 0;
};
// The rows of a text, at most so many columns each (at least 1), and perhaps a space more.
std::vector<InputRow> lay_out(std::string_view text, std::size_t columns);

// Not thread-safe.
class InputView {
 public:
  // What to write so that the terminal shows this prompt and text where it showed the last ones.
  std::string draw(std::string_view prompt, std::string_view text, std::size_t cursor,
                   const WindowSize& window);
  // The same for the last time: all rows, also more than the window has, and a new line below.
  std::string finish(std::string_view prompt, std::string_view text, const WindowSize& window);
  // What was drawn is not there any more; the cursor is at the beginning of a line.
  void forget();

 private:
  std::string go_to_top(const WindowSize& window) const;

  std::vector<std::size_t> above_;  // columns of the rows above the cursor, as they were drawn
  std::size_t cursor_column_ = 0;
  std::size_t top_ = 0;  // the first row that is shown
};

}  // namespace nvllm::launcher
