// Turns matches into pieces, as a SplitBehavior wants it.
#pragma once

#include <cstddef>
#include <utility>

#include "tokenizer/pre_tokenizer.h"

namespace nvllm::tokenizer {

// Takes matches from left to right and emits pieces (begin, end) from left to right; some are
// empty.
template <typename Emit>
class Splitter {
 public:
  Splitter(SplitBehavior behavior, bool invert, Emit emit)
      : behavior_(behavior), invert_(invert), emit_(std::move(emit)) {}

  auto matches() {
    return [this](std::size_t begin, std::size_t end) {
      if (begin > done_) add(done_, begin, invert_);
      add(begin, end, !invert_);
      done_ = end;
    };
  }

  void finish(std::size_t size) {
    if (done_ < size) add(done_, size, invert_);
    if (has_held_) emit_(held_begin_, held_end_);
  }

 private:
  // The next part of the text. It is put to the held piece, or the held piece is done.
  void add(std::size_t begin, std::size_t end, bool is_match) {
    bool joins = false;
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        if (!is_match) emit_(begin, end);
        return;
      case SplitBehavior::kIsolated: emit_(begin, end); return;
      case SplitBehavior::kContiguous: joins = is_match == held_is_match_; break;
      case SplitBehavior::kMergedWithPrevious: joins = is_match && !held_is_match_; break;
      case SplitBehavior::kMergedWithNext: joins = !is_match && held_is_match_; break;
    }
    if (has_held_ && joins) {
      held_end_ = end;
    } else {
      if (has_held_) emit_(held_begin_, held_end_);
      held_begin_ = begin;
      held_end_ = end;
      has_held_ = true;
    }
    held_is_match_ = is_match;
  }

  SplitBehavior behavior_;
  bool invert_;
  Emit emit_;
  std::size_t done_ = 0;
  bool has_held_ = false, held_is_match_ = false;
  std::size_t held_begin_ = 0, held_end_ = 0;
};

}  // namespace nvllm::tokenizer
