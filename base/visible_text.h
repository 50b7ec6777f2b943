// Makes untrusted text (of a model, a file, a template, a name) safe for terminals: control
// characters in it could move the cursor, change colours, set titles, or reverse the order of the
// text.
#pragma once

#include <string>
#include <string_view>

namespace nvllm {

enum class Breaks {
  keep,  // newlines and tabs stay; "\r\n" becomes a newline
  none   // the text becomes one line
};

// Escapes everything that is not a printable character: control characters (C0, DEL, and C1 in
// UTF-8), invalid UTF-8, and characters that change the writing direction. ESC becomes \x1b, U+009B
// becomes \u009b; other text is unchanged.
std::string visible_text(std::string_view text, Breaks breaks);

// visible_text() if the file descriptor is a terminal; text for files and pipes is unchanged.
std::string visible_on(int fd, std::string_view text);

}  // namespace nvllm
