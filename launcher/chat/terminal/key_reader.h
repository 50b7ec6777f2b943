// KeyReader: makes keys of the bytes that a terminal sends.
#pragma once

#include <string>

namespace nvllm::launcher {

struct Key {
  enum class Kind {
    none,  // bytes that mean nothing here
    text,  // typed, one character or more
    paste,
    enter,
    newline,  // Alt-Enter, Ctrl-J
    cancel,   // Ctrl-C
    end,      // Ctrl-D
    suspend,  // Ctrl-Z
    left,
    right,
    up,
    down,
    older,  // Ctrl-P
    newer,  // Ctrl-N
    word_left,
    word_right,
    line_begin,
    line_end,
    erase_left,
    erase_right,
    erase_word_left,
    erase_word_right,
    erase_to_line_begin,
    erase_to_line_end,
    clear_screen,
    complete,  // Tab
    search,    // Ctrl-R
    escape,    // also Ctrl-G
  };
  Kind kind = Kind::none;
  std::string text = "";  // of text and paste
};

// Not thread-safe.
class KeyReader {
 public:
  explicit KeyReader(int fd) : fd_(fd) {}

  // Waits for bytes; false: none came. An Error if the terminal has gone.
  bool fill(int limit_ms);
  bool empty() const { return bytes_.empty(); }
  // The next key; there are bytes. What follows an escape character or begins a paste is waited for
  // a little.
  Key next();

  // Whether Ctrl-C was among the keys that have come; what stands before it is dropped, too.
  bool interrupted();

 private:
  Key next_control(char byte);
  Key next_escape();
  Key next_text();
  Key next_paste();
  bool begins_paste();

  const int fd_;
  std::string bytes_;
};

}  // namespace nvllm::launcher
