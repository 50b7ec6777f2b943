// Grapheme clusters, which users perceive as one character, and their width in terminal columns. A
// cluster is a letter with its accents, a flag, a family of emoji, a Hangul syllable: the cursor
// moves over it in one step, and one key erases it.
#pragma once

#include <cstddef>
#include <string_view>

namespace nvllm::launcher {

// ClusterReader: finds clusters in a text that is read character by character. It implements
// Unicode's UAX #29, without the rules for prepended marks and Indic conjuncts.
class ClusterReader {
 public:
  // Takes the next character. True: it starts a cluster; false: it belongs to the previous one.
  bool push(char32_t c);
  // The columns of the cluster so far.
  std::size_t width() const { return width_; }

 private:
  char32_t last_ = 0;        // 0: none
  bool pictograph_ = false;  // the cluster is an emoji, possibly with marks and joiners
  bool flag_half_ = false;   // the cluster is one regional indicator, to which another one may be
                             // added
  std::size_t width_ = 0;
};

// Indexes into valid UTF-8 text: the end of the cluster that starts at `at`, and the start of the
// one that ends there. Both stop at the ends of the text.
std::size_t next_cluster(std::string_view text, std::size_t at);
std::size_t previous_cluster(std::string_view text, std::size_t at);

// The width of a one-line text in columns.
std::size_t columns_of(std::string_view text);

// Whether the character takes two columns by itself, like Chinese characters.
bool is_wide(char32_t c);

}  // namespace nvllm::launcher
