#include "launcher/session/text_table.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "base/text.h"

namespace nvllm::launcher {
namespace {

struct Column {
  std::size_t width = 0;
  bool numbers = true;  // below the title
};

// Also a number of bytes: "1.5 GiB".
bool is_number(std::string_view cell) {
  for (const std::string_view unit : {" B", " KiB", " MiB", " GiB", " TiB"}) {
    if (!cell.ends_with(unit)) continue;
    cell.remove_suffix(unit.size());
    break;
  }
  return !cell.empty() && cell.find_first_not_of("0123456789.") == std::string::npos;
}

}  // namespace

std::string TextTable::text() const {
  std::vector<Column> columns;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    columns.resize(std::max(columns.size(), rows_[r].size()));
    for (std::size_t c = 0; c < rows_[r].size(); ++c) {
      const std::string& cell = rows_[r][c];
      columns[c].width = std::max(columns[c].width, cell.size());
      if (r > 0 && !is_number(cell)) columns[c].numbers = false;
    }
  }
  std::string all;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(columns[c].width - row[c].size(), ' ');
      line += "  " + (columns[c].numbers ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    all += line + '\n';
  }
  return all;
}

std::string fixed(double number, int digits) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%.*f", digits, number);
  return text.data();
}

std::string three_digits(double value) {
  return fixed(value, value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3);
}

std::string progress_bar(double done) {
  constexpr std::size_t kWidth = 30;
  const auto full = static_cast<std::size_t>(done * kWidth);
  return str('[', std::string(full, '#'), std::string(kWidth - full, '.'), "] ",
             static_cast<int>(done * 100), "%, ");
}

}  // namespace nvllm::launcher
