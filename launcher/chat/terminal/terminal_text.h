// Text in the columns of a terminal: grapheme clusters and their widths, the size of the window,
// and WrappedText, which breaks lines between words.
//
// Users perceive a cluster as one character. It is a letter with its accents, a flag, a family of
// emoji, a Hangul syllable: the cursor moves over it in one step, and one key erases it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
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

// Wraps a text that arrives in pieces between its words, at the width of the terminal. Every piece
// can be shown immediately: a word that turns out not to fit is erased and written again on the
// next line. Not thread-safe.
class WrappedText {
 public:
  // columns: the terminal's current width, which may change. 0: the text passes unchanged. The
  // cursor is at the start of a line.
  explicit WrappedText(std::function<std::size_t()> columns) : columns_of_(std::move(columns)) {}

  // What to write for the next piece, which ends with a complete character. Sequences that start
  // with an escape character and end with 'm' (colours) take no column.
  std::string push(std::string_view piece);

 private:
  void push_char(char32_t c, std::string_view bytes);
  void push_space(std::size_t count);
  void break_line();
  void end_word();
  void move_word();

  std::function<std::size_t()> columns_of_;
  std::size_t columns_ = 0;  // of the terminal, during push()
  std::size_t column_ = 0;   // of the cursor
  std::string word_;         // the word before the cursor, with its colours
  std::size_t word_columns_ = 0;
  std::size_t word_at_ = 0;          // its start in out_; npos: it is already written
  std::size_t cluster_columns_ = 0;  // of the last cluster, which may grow
  bool wide_ = false;                // the word is a wide character: another one starts a new word
  ClusterReader clusters_;
  std::string out_;
};

// The window size of the terminal with this descriptor; 80 columns if unknown.
struct WindowSize {
  std::size_t rows = 24, columns = 80;
  bool operator==(const WindowSize&) const = default;
};
WindowSize window_size(int fd);

}  // namespace nvllm::launcher
