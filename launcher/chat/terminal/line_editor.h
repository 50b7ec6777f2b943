// LineEditor: reads one or several lines from a person at a terminal. While this object exists the
// terminal is in raw mode: it sends single keys, and Ctrl-C is a key instead of a signal.
//
//   Enter ends the input; Alt-Enter, Ctrl-J or a backslash at the end of a line begin a new line;
//   pasted text may have several. Ctrl-C cancels the input; Ctrl-D leaves if there is no input.
//   Cursor keys move, also up and down between lines; above the first line and below the last one
//   they bring old inputs back. Ctrl-R searches them. Tab completes what `complete` knows.
#pragma once

#include <termios.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/chat/terminal/edit_text.h"
#include "launcher/chat/terminal/history.h"
#include "launcher/chat/terminal/input_view.h"
#include "launcher/chat/terminal/key_reader.h"

namespace nvllm::launcher {

// Not thread-safe. If the process is killed, another process restores the terminal.
class LineEditor {
 public:
  // Returns all inputs that start with the text.
  using Complete = std::function<std::vector<std::string>(const std::string& text)>;

  // in and out are the terminal.
  LineEditor(int in, int out, History history = {}, Complete complete = {});
  ~LineEditor();  // restores the terminal
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class End { entered, cancelled, left };
  // idle is called several times a second while nothing is typed; it may throw.
  End read(std::string_view prompt, const std::function<void()>& idle);
  // The same for an answer to a question by the program, which the history does not store.
  End read_answer(std::string_view question, const std::function<void()>& idle);
  const std::string& text() const { return edit_.text(); }  // what was entered

  // Restores the terminal instead of the destructor: may be called by any thread when the process
  // is about to end.
  void give_terminal_back() const;

  // Whether Ctrl-C was typed since read() returned. Keys after it are kept for the next read().
  bool interrupted() { return keys_.interrupted(); }

 private:
  class TerminalWatcher;

  struct Search {
    std::string query;
    std::optional<std::size_t> found;  // index into the history
    std::string before;                // the input when the search started
    std::size_t recalled = 0;          // value of recalled_ then
  };

  termios raw() const;
  void set_raw();
  void restore();
  void suspend();
  void remember();
  void write(std::string_view text) const;

  // Handles a key. nullopt: the input continues.
  std::optional<End> handle(const Key& key);
  std::optional<End> handle_enter();
  void edit(const Key& key);
  void move_or_recall(bool older);
  void recall(bool older);
  void complete();
  bool handle_in_search(const Key& key);
  void search_older(std::size_t end);
  void draw();
  void draw_if_resized();
  void show_above(const std::string& line);

  const int in_, out_;
  termios before_{};
  std::unique_ptr<TerminalWatcher> watcher_;
  KeyReader keys_;
  History history_;
  Complete complete_;

  std::string prompt_;
  bool keeps_ = true;  // whether the history stores this input
  EditText edit_;
  InputView view_;
  WindowSize window_;         // when it was last drawn
  std::size_t recalled_ = 0;  // index into the history; its size: the new input
  std::string typed_;         // the new input, while an older one is shown
  std::optional<Search> search_;
};

}  // namespace nvllm::launcher
