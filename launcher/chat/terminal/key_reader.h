// KeyReader: decodes the bytes that a terminal sends into keys.
#pragma once

#include <string>

namespace nvllm::launcher {

struct Key {
  enum class Kind {
    none,  // bytes without a meaning
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

  // Waits for bytes; false: none arrived. An Error if the terminal is gone.
  bool fill(int limit_ms);
  bool empty() const { return bytes_.empty(); }
  // The next key; there must be bytes. Waits briefly for the rest of an escape sequence or paste.
  Key next();

  // Whether Ctrl-C is among the keys received; keys before it are dropped as well.
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
