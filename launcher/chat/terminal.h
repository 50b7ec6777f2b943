// LineEditor: a line, or several, from a person at a terminal: moving, deleting, history, pasting. While
// it lives the terminal gives single keys and makes no signals of them, so that Ctrl-C is a key like others.
//
//   Enter ends the input; Alt-Enter, Ctrl-J or a backslash at the end begin a new line; what is pasted may
//   have many. Ctrl-C gives the input up, Ctrl-D leaves where there is none.
#pragma once

#include <termios.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

// Used by one thread.
class LineEditor {
 public:
  // Both are the terminal.
  LineEditor(int in, int out);
  ~LineEditor();  // the terminal is as it was
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class End { entered, given_up, left };
  // idle: called several times a second while nothing is typed; it may throw.
  End read(std::string_view prompt, const std::function<void()>& idle);
  const std::string& text() const { return text_; }  // what was entered

  // While something else is shown: whether Ctrl-C was typed. Other keys wait for the next read().
  bool interrupted();

 private:
  enum class Key { none, enter, newline, give_up, leave, suspend, edited };

  void set_raw();
  void restore();
  bool fill(int limit_ms);  // reads what was typed into keys_
  Key take_key();
  Key take_control(char key);
  Key take_escape();
  bool take_paste();
  void insert(std::string_view text);
  void erase(std::size_t begin, std::size_t end);
  void recall(int step);
  std::size_t before(std::size_t at) const;  // where the character before begins
  std::size_t after(std::size_t at) const;
  std::size_t word_before(std::size_t at) const;
  std::size_t word_after(std::size_t at) const;
  std::size_t line_begin() const;
  std::size_t line_end() const;
  void draw();
  void write(std::string_view text) const;

  const int in_, out_;
  termios before_{};
  std::string keys_;  // typed, and not looked at yet
  std::string prompt_, text_;
  std::size_t at_ = 0;   // the cursor's place in text_
  std::size_t row_ = 0;  // the cursor's, from the prompt's first one
  std::vector<std::string> history_;
  std::size_t recalled_ = 0;  // index into history_; its size: what is being typed
  std::string typed_;         // that, while an older one is shown
};

}  // namespace nvllm::launcher
