// Formatting of reports: tables, numbers, progress bars.
#pragma once

#include <string>
#include <vector>

#include "base/text.h"

namespace nvllm::launcher {

// A table in columns, each as wide as its widest cell.
class TextTable {
 public:
  // Adds a row; rows may have different numbers of cells.
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Every line starts with two spaces, and two more separate the columns. A column that contains
  // only numbers, or sizes ("1.5 GiB"), below its heading is right-aligned, all others
  // left-aligned.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "1 rank", "2 ranks".
template <typename Count>
std::string counted(Count count, const char* what) {
  return str(count, ' ', what, count == 1 ? "" : "s");
}

// "3.14": with this many decimals.
std::string fixed(double number, int digits);
// With three significant digits, or all digits before the point.
std::string three_digits(double value);

// "[###...] 50%, "; done: 0 to 1.
std::string progress_bar(double done);

// Moves to the start of a terminal's line and erases it.
inline constexpr const char* kClearLine = "\r\033[K";

}  // namespace nvllm::launcher
