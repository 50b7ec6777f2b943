// Columns of text, each as wide as its widest cell.
#pragma once

#include <string>
#include <vector>

namespace nvllm::launcher {

class TextTable {
 public:
  // Cells of one row; rows may be of different lengths.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Every line begins with two spaces; two more lie between columns. Numbers stand on the right of their
  // columns, everything else, and so a column that holds anything else but a title, on the left.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace nvllm::launcher
