// Text of others (of a model, a file, a template, a name) on its way to a terminal: control
// characters in it would move the cursor, change colours, set titles, or reverse what people read.
#pragma once

#include <string>
#include <string_view>

namespace nvllm {

enum class Breaks {
  keep,  // newlines and tabs stay; "\r\n" becomes a newline
  none   // the text becomes one line
};

// The text with everything made visible that is no character to be shown: control characters (C0,
// DEL, and C1 in UTF-8), bytes that are not UTF-8, and what changes the direction of writing.
// ESC becomes \x1b, U+009B becomes \u009b; other text stays as it is.
std::string visible_text(std::string_view text, Breaks breaks);

// visible_text() if the file descriptor is a terminal; files and pipes get the text untouched.
std::string visible_on(int fd, std::string_view text);

}  // namespace nvllm
