// How the ranks of pipeline stages lie on boxes: whether collectives of a stage can work in two
// levels, first among its ranks on a box, then among boxes.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"

namespace nvllm::ipc {

// How many of a stage's ranks each of its boxes has, if that is the same number for all boxes and
// stages, at least two, and fewer than the whole stage. Otherwise nullopt, and `why` says what is
// missing. Ranks are consecutive, on boxes as in stages. box_ranks: as in GroupOptions, not empty.
inline std::optional<int> two_level_ranks(std::span<const int> box_ranks, int stages,
                                          std::string& why) {
  int size = 0;
  for (const int ranks : box_ranks) size += ranks;
  const int of_stage = size / stages;
  int common = 0;
  int box_end = 0;
  for (const int ranks : box_ranks) {
    const int box_begin = box_end;
    box_end += ranks;
    for (int stage = 0; stage < stages; ++stage) {
      const int begin = stage * of_stage, end = begin + of_stage;
      const int here = std::min(end, box_end) - std::max(begin, box_begin);
      if (here <= 0) continue;
      if (common == 0) common = here;
      if (here == common) continue;
      why = str("boxes have different numbers of a stage's ranks, such as ", common, " and ", here);
      return std::nullopt;
    }
  }
  if (common == of_stage) {
    why = stages == 1 ? "all ranks are on one box" : "each stage is on one box";
    return std::nullopt;
  }
  if (common == 1) {
    why = "no box has two ranks of a stage";
    return std::nullopt;
  }
  return common;
}

}  // namespace nvllm::ipc
