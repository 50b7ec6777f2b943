// TextTable: a table in columns, each as wide as its widest cell.
#pragma once

#include <string>
#include <vector>

namespace nvllm::launcher {

class TextTable {
 public:
  // Adds a row; rows may have different numbers of cells.
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Every line begins with two spaces, and two more separate the columns. A column that holds
  // numbers alone, below its title, is aligned to the right, every other one to the left.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace nvllm::launcher
