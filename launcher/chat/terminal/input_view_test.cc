#include "launcher/chat/terminal/input_view.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "launcher/chat/terminal/testing/screen.h"

namespace nvllm::launcher {
namespace {

using testing::Screen;

std::vector<std::string> rows_of(const std::string& text, std::size_t columns) {
  std::vector<std::string> all;
  for (const InputRow& row : lay_out(text, columns)) {
    all.push_back(text.substr(row.begin, row.end - row.begin));
  }
  return all;
}

using Rows = std::vector<std::string>;

TEST_CASE("rows end between words, at newlines, or where a word is longer than a row") {
  CHECK(rows_of("", 10) == Rows{""});
  CHECK(rows_of("one two three", 8) == Rows{"one two ", "three"});
  CHECK(rows_of("one two three", 7) == Rows{"one two ", "three"});
  CHECK(rows_of("one\n\ntwo\n", 8) == Rows{"one", "", "two", ""});
  CHECK(rows_of("a abcdefghijklm", 5) == Rows{"a ", "abcde", "fghij", "klm"});
  CHECK(rows_of("\u4F60\u597D\u4E16", 5) == Rows{"\u4F60\u597D", "\u4E16"});
  CHECK(rows_of("ab", 1) == Rows{"a", "b"});
}

TEST_CASE("the cursor stands where the next character will come") {
  Screen screen(10, 12);
  InputView view;
  const std::string text = "one two three";
  for (const std::size_t cursor : {0U, 3U, 8U, 13U}) {
    screen.write(view.draw("> ", text, cursor, {10, 12}));
    CHECK(screen.text() == "> one two\n  three");
    CHECK(screen.row() == (cursor < 8 ? 0 : 1));
    CHECK(screen.column() == (cursor < 8 ? 2 + cursor : 2 + cursor - 8));
  }
}

TEST_CASE("a window that is too small shows the rows around the cursor, and scrolls nothing off") {
  Screen screen(3, 20);
  InputView view;
  const std::string text = "a\nb\nc\nd\ne";
  screen.write(view.draw("> ", text, text.size(), {3, 20}));
  CHECK(screen.text() == "  c\n  d\n  e");
  screen.write(view.draw("> ", text, 2, {3, 20}));
  CHECK(screen.text() == "  b\n  c\n  d");
  screen.write(view.draw("> ", text, 0, {3, 20}));
  CHECK(screen.text() == "> a\n  b\n  c");
  CHECK(screen.scrolled() == 0);
  screen.write(view.finish("> ", text, {3, 20}));
  CHECK(screen.text() == "> a\n  b\n  c\n  d\n  e");
}

// A terminal that becomes narrower wraps rows that are already drawn.
TEST_CASE("after the window has become narrower the input is drawn once") {
  InputView view;
  view.draw("> ", "one two three", 13, {10, 40});
  Screen narrow(10, 10);
  narrow.write("> one two three");  // as such a terminal shows it
  narrow.write(view.draw("> ", "one two three", 13, {10, 10}));
  CHECK(narrow.text() == "> one two\n  three");
}

}  // namespace
}  // namespace nvllm::launcher
