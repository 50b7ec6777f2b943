// EditText: a text being edited, with its cursor. It does not depend on terminals or keys.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace nvllm::launcher {

// The text is valid UTF-8; the cursor is between two clusters. Not thread-safe.
class EditText {
 public:
  const std::string& text() const { return text_; }
  std::size_t cursor() const { return cursor_; }  // index into the text

  // Moves the cursor to the end of the new text.
  void set(std::string text);
  // Replaces invalid bytes, and makes control characters visible, since a terminal will show the
  // text.
  void insert(std::string_view text);
  void erase(std::size_t begin, std::size_t end);

  // Movements. Lines are separated by newlines.
  void left();
  void right();
  void word_left();
  void word_right();
  void line_begin();
  void line_end();
  // Move to the same column of the line above or below; false: there is none, the cursor stays.
  bool up();
  bool down();

  // Erasing.
  void erase_left();
  void erase_right();
  void erase_word_left();  // back to the space before it
  void erase_word_right();
  void erase_to_line_begin();
  void erase_to_line_end();

 private:
  std::size_t begin_of_line(std::size_t at) const;
  std::size_t end_of_line(std::size_t at) const;
  std::size_t before_word(std::size_t at) const;
  std::size_t behind_word(std::size_t at) const;
  void move_to(std::size_t at);
  void move_to_column(std::size_t line_begin);

  std::string text_;
  std::size_t cursor_ = 0;
  // The column that up() and down() keep until something else moves the cursor.
  std::optional<std::size_t> wanted_column_;
};

}  // namespace nvllm::launcher
