#include "launcher/cli/nearest_name.h"

#include <algorithm>
#include <cstddef>

namespace nvllm::launcher {
namespace {

// Number of letters to insert, remove, replace, or swap with their neighbour.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  // rows[i][j]: distance of the first i letters of a and the first j of b.
  std::vector<std::vector<std::size_t>> rows(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        rows[i][j] = i + j;
        continue;
      }
      rows[i][j] = std::min(
          {rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows[a.size()][b.size()];
}

// "tp" of "--tp"
std::string_view without_dashes(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  return name;
}

// Typing errors rarely affect the first letter, except by swapping it with the second.
bool begins_as(std::string_view word, std::string_view name) {
  return word[0] == name[0] ||
         (word.size() > 1 && name.size() > 1 && word[0] == name[1] && word[1] == name[0]);
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  // At most a third of the letters may be wrong, and at least one must be right.
  const std::string_view letters = without_dashes(word);
  const std::size_t max_distance = std::max<std::size_t>(1, letters.size() / 3);
  std::string best;
  std::size_t best_distance = std::min(max_distance + 1, letters.size());
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(letters, without_dashes(candidate));
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

std::string mistyped_name(std::string_view word, const std::vector<std::string>& names) {
  constexpr std::size_t kLongName = 6;
  const auto small = [](char c) { return c >= 'a' && c <= 'z'; };
  if (word.empty() || !std::all_of(word.begin(), word.end(), small)) return "";
  std::string best;
  std::size_t best_distance = 3;
  for (const std::string& name : names) {
    const std::size_t max = name.size() >= kLongName ? 2 : 1;
    const std::size_t distance = edit_distance(word, name);
    if (!begins_as(word, name) || distance > max || distance >= best_distance) continue;
    best_distance = distance, best = name;
  }
  return best;
}

}  // namespace nvllm::launcher
