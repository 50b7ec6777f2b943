// MarkedText: a text in which bytes from outside are marked: those from a message of a
// conversation, not from the chat template around it. A marked byte is never part of a special
// token (Tokenizer::encode), so nobody can end a message by writing <|im_end|> into it.
//
// Effect of operations on marks: text that is copied, cut, joined, stripped, replaced in or
// formatted into another one keeps the marks of its bytes; a text that is newly created from
// another one (upper, tojson, ...) is marked entirely if any byte of its source is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::tokenizer {

// Ranges of bytes, in order; no two are adjacent.
class Marks {
 public:
  struct Range {
    std::size_t begin, end;
    bool operator==(const Range&) const = default;
  };

  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

  // Adds a range after all existing ones.
  void add(std::size_t begin, std::size_t end) {
    if (begin == end) return;
    if (!ranges_.empty() && ranges_.back().end == begin) {
      ranges_.back().end = end;
    } else {
      ranges_.push_back({begin, end});
    }
  }

  // Adds the marks of `other` in [begin, end) of its text, which is copied to `at` here.
  void add_part(const Marks& other, std::size_t begin, std::size_t end, std::size_t at) {
    for (auto range = other.first_behind(begin); range != other.ranges_.end() && range->begin < end;
         ++range) {
      add(std::max(range->begin, begin) - begin + at, std::min(range->end, end) - begin + at);
    }
  }

  // Whether a byte of [begin, end) is marked.
  bool any_in(std::size_t begin, std::size_t end) const {
    const auto range = first_behind(begin);
    return range != ranges_.end() && range->begin < end;
  }

  bool operator==(const Marks&) const = default;

 private:
  // The first range that ends after `at`.
  std::vector<Range>::const_iterator first_behind(std::size_t at) const {
    return std::ranges::upper_bound(ranges_, at, {}, &Range::end);
  }

  std::vector<Range> ranges_;
};

struct MarkedText {
  std::string text;
  Marks marks = {};

  // A text that comes entirely from outside.
  static MarkedText outside(std::string text) {
    MarkedText all{std::move(text)};
    all.marks.add(0, all.text.size());
    return all;
  }

  void append(std::string_view more) { text += more; }
  void append(const MarkedText& more) { append(more, 0, more.text.size()); }
  // Appends bytes [begin, end) of `more`.
  void append(const MarkedText& more, std::size_t begin, std::size_t end) {
    marks.add_part(more.marks, begin, end, text.size());
    text.append(more.text, begin, end - begin);
  }
  MarkedText part(std::size_t begin, std::size_t end) const {
    MarkedText out;
    out.append(*this, begin, end);
    return out;
  }
  // Removes the bytes from `size` on.
  void cut(std::size_t size) {
    if (size < text.size()) *this = part(0, size);
  }
};

// Concatenates the results of change() for each part, marked or not.
template <typename Change>
MarkedText map_parts(const MarkedText& text, const Change& change) {
  const std::string_view all = text.text;
  MarkedText out;
  std::size_t done = 0;
  for (const Marks::Range& range : text.marks.ranges()) {
    out.append(change(all.substr(done, range.begin - done)));
    out.append(MarkedText::outside(change(all.substr(range.begin, range.end - range.begin))));
    done = range.end;
  }
  out.append(change(all.substr(done)));
  return out;
}

}  // namespace nvllm::tokenizer
