// Grapheme clusters: what people take for one character, and how many columns of a terminal it
// takes. A cluster is a letter with its accents, a flag, a family of emoji, a Hangul syllable: the
// cursor moves over it in one step, and one key erases it.
#pragma once

#include <cstddef>
#include <string_view>

namespace nvllm::launcher {

// ClusterReader: finds clusters in a text that comes character by character. Its rules are those of
// Unicode's UAX #29, without the ones for prepended marks and Indic conjuncts.
class ClusterReader {
 public:
  // Takes the next character. True: it begins a cluster; false: it belongs to the one before.
  bool push(char32_t c);
  // The columns of the cluster so far.
  std::size_t width() const { return width_; }

 private:
  char32_t last_ = 0;        // 0: none
  bool pictograph_ = false;  // the cluster is an emoji, with marks and joiners behind it
  bool flag_half_ = false;   // the cluster is one regional indicator, and takes another one
  std::size_t width_ = 0;
};

// Indexes into a valid UTF-8 text: the end of the cluster that begins at `at`, and the beginning of
// the one that ends there. Both stay at the text's own ends.
std::size_t next_cluster(std::string_view text, std::size_t at);
std::size_t previous_cluster(std::string_view text, std::size_t at);

// The columns of a text in one line.
std::size_t columns_of(std::string_view text);

// Whether the character takes two columns by itself, as Chinese ones do.
bool is_wide(char32_t c);

}  // namespace nvllm::launcher
