#include "launcher/chat/terminal/input_view.h"

#include <algorithm>

#include "base/text.h"

namespace nvllm::launcher {

std::vector<InputRow> lay_out(std::string_view text, std::size_t columns) {
  std::vector<InputRow> rows;
  std::size_t begin = 0, at = 0, column = 0;
  std::size_t behind_space = 0, column_there = 0;  // where the row may be broken
  while (at < text.size()) {
    if (text[at] == '\n') {
      rows.push_back({begin, at});
      begin = behind_space = ++at;
      column = column_there = 0;
      continue;
    }
    const std::size_t next = next_cluster(text, at);
    const std::size_t width = columns_of(text.substr(at, next - at));
    if (column == columns && text[at] == ' ') {
      // A space at the end of a row is at the cursor's extra column.
      rows.push_back({begin, next});
      begin = behind_space = at = next;
      column = column_there = 0;
      continue;
    }
    if (column + width > columns && at > begin) {
      const bool between_words = behind_space > begin;
      const std::size_t end = between_words ? behind_space : at;
      rows.push_back({begin, end});
      column -= between_words ? column_there : column;
      begin = behind_space = end;
      column_there = 0;
    }
    column += width;
    at = next;
    if (text[at - 1] == ' ') behind_space = at, column_there = column;
  }
  rows.push_back({begin, text.size()});
  return rows;
}

namespace {

// Columns of a row for text: one is left for the cursor after it.
std::size_t text_columns(std::string_view prompt, const WindowSize& window) {
  const std::size_t taken = columns_of(prompt) + 1;
  return window.columns > taken ? window.columns - taken : 1;
}

// Text before a row: the prompt before the first one, spaces of the same width before the others.
std::string margin_of(std::size_t row, std::string_view prompt) {
  return row == 0 ? std::string(prompt) : std::string(columns_of(prompt), ' ');
}

// The row with the cursor: at the end of a row that is broken between words, it is in the next row.
std::size_t row_of(const std::vector<InputRow>& rows, std::size_t cursor) {
  std::size_t row = rows.size() - 1;
  while (row > 0 && rows[row].begin > cursor) --row;
  return row;
}

}  // namespace

// Moves to the first row shown, wherever a terminal that has become narrower has moved it, and
// erases everything from there on.
std::string InputView::go_to_top(const WindowSize& window) const {
  std::size_t up = cursor_column_ / window.columns;
  for (const std::size_t columns : above_) {
    up += std::max<std::size_t>((columns + window.columns - 1) / window.columns, 1);
  }
  up = std::min(up, window.rows - 1);
  return (up > 0 ? str("\033[", up, "A") : "") + "\r\033[J";
}

std::string InputView::draw(std::string_view prompt, std::string_view text, std::size_t cursor,
                            const WindowSize& window) {
  const std::vector<InputRow> rows = lay_out(text, text_columns(prompt, window));
  const std::size_t cursor_row = row_of(rows, cursor);
  const std::size_t shown = std::min(rows.size(), window.rows);
  top_ = std::min({top_, cursor_row, rows.size() - shown});
  if (cursor_row >= top_ + shown) top_ = cursor_row + 1 - shown;

  std::string out = go_to_top(window);
  above_.clear();
  for (std::size_t row = top_; row < top_ + shown; ++row) {
    const std::string line =
        margin_of(row, prompt) +
        std::string(text.substr(rows[row].begin, rows[row].end - rows[row].begin));
    out += (row > top_ ? "\r\n" : "") + line;
    if (row < cursor_row) above_.push_back(columns_of(line));
  }
  // The cursor is positioned by writing the text before it again, because terminals disagree on the
  // width of emoji.
  if (const std::size_t up = top_ + shown - 1 - cursor_row; up > 0) out += str("\033[", up, "A");
  const std::string before =
      margin_of(cursor_row, prompt) +
      std::string(text.substr(rows[cursor_row].begin, cursor - rows[cursor_row].begin));
  cursor_column_ = columns_of(before);
  return out + "\r" + before;
}

std::string InputView::finish(std::string_view prompt, std::string_view text,
                              const WindowSize& window) {
  const std::vector<InputRow> rows = lay_out(text, text_columns(prompt, window));
  std::string out = go_to_top(window);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    out += margin_of(row, prompt);
    out += text.substr(rows[row].begin, rows[row].end - rows[row].begin);
    out += "\r\n";
  }
  forget();
  return out;
}

void InputView::forget() {
  above_.clear();
  cursor_column_ = top_ = 0;
}

}  // namespace nvllm::launcher
