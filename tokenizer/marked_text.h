// MarkedText: a text of which some bytes are marked as having come from outside: from a message of
// a conversation, not from the chat template that it was put into. A marked byte is never a part of
// a special token (Tokenizer::encode), so nobody can write <|im_end|> into a message and end it.
//
// What operations do to marks: text that is copied, cut, joined, stripped, replaced in or formatted
// into another keeps the marks of its bytes; what is made anew from a text (upper, tojson, ...) is
// marked as a whole if any byte of what it was made from is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::tokenizer {

// Ranges of bytes, in order; no two touch.
class Marks {
 public:
  struct Range {
    std::size_t begin, end;
    bool operator==(const Range&) const = default;
  };

  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

  // Behind all that is marked already.
  void add(std::size_t begin, std::size_t end) {
    if (begin == end) return;
    if (!ranges_.empty() && ranges_.back().end == begin) {
      ranges_.back().end = end;
    } else {
      ranges_.push_back({begin, end});
    }
  }

  // The marks that `other` has in [begin, end) of its text, as of a text that begins at `at` here.
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
  // The first that ends behind `at`.
  std::vector<Range>::const_iterator first_behind(std::size_t at) const {
    return std::ranges::upper_bound(ranges_, at, {}, &Range::end);
  }

  std::vector<Range> ranges_;
};

struct MarkedText {
  std::string text;
  Marks marks = {};

  // All of it came from outside.
  static MarkedText outside(std::string text) {
    MarkedText all{std::move(text)};
    all.marks.add(0, all.text.size());
    return all;
  }

  void append(std::string_view more) { text += more; }
  void append(const MarkedText& more) { append(more, 0, more.text.size()); }
  // `more` from byte `begin` to byte `end`.
  void append(const MarkedText& more, std::size_t begin, std::size_t end) {
    marks.add_part(more.marks, begin, end, text.size());
    text.append(more.text, begin, end - begin);
  }
  MarkedText part(std::size_t begin, std::size_t end) const {
    MarkedText out;
    out.append(*this, begin, end);
    return out;
  }
  // Without the bytes from `size` on.
  void cut(std::size_t size) {
    if (size < text.size()) *this = part(0, size);
  }
};

// What change() makes of each part, marked and not marked, one after the other.
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
