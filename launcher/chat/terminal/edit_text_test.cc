#include "launcher/chat/terminal/edit_text.h"

#include <doctest/doctest.h>

#include <string>

namespace nvllm::launcher {
namespace {

// The text with a bar where the cursor is.
std::string shown(const EditText& edit) {
  return edit.text().substr(0, edit.cursor()) + "|" + edit.text().substr(edit.cursor());
}

EditText with(const std::string& text) {
  EditText edit;
  edit.set(text);
  return edit;
}

TEST_CASE("the cursor moves over whole clusters, and one key erases one") {
  EditText edit = with("ae\u0301\U0001F1E9\U0001F1EA\U0001F468\u200D\U0001F467");
  edit.left();
  CHECK(shown(edit) == "ae\u0301\U0001F1E9\U0001F1EA|\U0001F468\u200D\U0001F467");
  edit.erase_left();
  CHECK(shown(edit) == "ae\u0301|\U0001F468\u200D\U0001F467");
  edit.erase_right();
  CHECK(shown(edit) == "ae\u0301|");
  edit.erase_left();
  CHECK(shown(edit) == "a|");
  edit.left();
  edit.left();
  edit.erase_left();
  CHECK(shown(edit) == "|a");
}

TEST_CASE("words are letters and digits, with whatever stands between them") {
  EditText edit = with("one, two_3 (f\u00FCr)");
  edit.word_left();
  CHECK(shown(edit) == "one, two_3 (|f\u00FCr)");
  edit.word_left();
  CHECK(shown(edit) == "one, |two_3 (f\u00FCr)");
  edit.word_left();
  edit.word_left();
  CHECK(shown(edit) == "|one, two_3 (f\u00FCr)");
  edit.word_right();
  edit.word_right();
  CHECK(shown(edit) == "one, two_3| (f\u00FCr)");
  edit.erase_word_right();
  CHECK(shown(edit) == "one, two_3|)");
  edit.erase_word_left();
  CHECK(shown(edit) == "one, |)");
}

TEST_CASE("up and down keep the column that they began in") {
  EditText edit = with("first line\nab\n\u4F60\u597D\u4E16\u754C");
  CHECK_FALSE(edit.down());
  CHECK(edit.up());
  CHECK(shown(edit) == "first line\nab|\n\u4F60\u597D\u4E16\u754C");
  CHECK(edit.up());
  CHECK(shown(edit) == "first li|ne\nab\n\u4F60\u597D\u4E16\u754C");
  CHECK_FALSE(edit.up());
  CHECK(edit.down());
  CHECK(edit.down());
  CHECK(shown(edit) == "first line\nab\n\u4F60\u597D\u4E16\u754C|");
  edit.left();
  edit.up();
  edit.up();
  CHECK(shown(edit) == "first |line\nab\n\u4F60\u597D\u4E16\u754C");
}

TEST_CASE("lines have a beginning and an end, and are erased up to these") {
  EditText edit = with("one\ntwo");
  edit.left();
  edit.line_begin();
  CHECK(shown(edit) == "one\n|two");
  edit.erase_to_line_begin();
  CHECK(shown(edit) == "one\n|two");
  edit.right();
  edit.erase_to_line_begin();
  CHECK(shown(edit) == "one\n|wo");
  edit.up();
  edit.erase_to_line_end();
  CHECK(shown(edit) == "|\nwo");
  edit.line_end();
  CHECK(shown(edit) == "|\nwo");
}

TEST_CASE("bytes that are no text are replaced") {
  CHECK(with("a\xFF\xC3").text() == "a\uFFFD\uFFFD");
}

}  // namespace
}  // namespace nvllm::launcher
