// What a chat does with the terminal: it reads lines from a person, and dims the text of thinking.
#pragma once

#include <termios.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

// LineEditor: reads one or several lines from a person at a terminal, with cursor keys, deletion,
// history and pasting. While it lives the terminal is in raw mode: it sends single keys, and Ctrl-C
// is a key instead of a signal.
//
//   Enter ends the input; Alt-Enter, Ctrl-J or a backslash at the end of a line begin a new line;
//   pasted text may have several. Ctrl-C cancels the input; Ctrl-D leaves if there is no input.
//
// Not thread-safe.
class LineEditor {
 public:
  // Both are the terminal.
  LineEditor(int in, int out);
  ~LineEditor();  // restores the terminal
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class End { entered, cancelled, left };
  // idle is called several times a second while nothing is typed; it may throw.
  End read(std::string_view prompt, const std::function<void()>& idle);
  const std::string& text() const { return text_; }  // what was entered

  // Whether Ctrl-C was typed since read() returned. Other keys are kept for the next read().
  bool interrupted();

 private:
  enum class Key { none, enter, newline, cancel, leave, suspend, edited };

  void set_raw();
  void restore();
  bool fill(int limit_ms);  // reads typed keys into keys_
  Key next_key();
  Key handle_control(char key);
  Key handle_escape();
  bool handle_paste();
  void insert(std::string_view text);
  void erase(std::size_t begin, std::size_t end);
  void recall(int step);
  std::size_t before(std::size_t at) const;  // where the previous character begins
  std::size_t after(std::size_t at) const;
  std::size_t word_before(std::size_t at) const;
  std::size_t word_after(std::size_t at) const;
  std::size_t line_begin() const;
  std::size_t line_end() const;
  void draw();
  void write(std::string_view text) const;

  const int in_, out_;
  termios before_{};
  std::string keys_;  // typed, and not processed yet
  std::string prompt_, text_;
  std::size_t at_ = 0;   // the cursor's index in text_
  std::size_t row_ = 0;  // the cursor's row below the prompt's first one
  std::vector<std::string> history_;
  std::size_t recalled_ = 0;  // index into history_; its size: the new input
  std::string typed_;         // the new input, while an older one is shown
};

// ThinkingText: dims what stands between <think> and </think>, in a text that comes in pieces.
class ThinkingText {
 public:
  // dimmed: false passes pieces unchanged. thinking: whether the text begins inside <think>.
  ThinkingText(bool dimmed, bool thinking);

  std::string push(std::string_view piece);
  std::string finish();

 private:
  bool dimmed_, thinking_;
  std::string held_;  // may be the beginning of a tag
};

}  // namespace nvllm::launcher
