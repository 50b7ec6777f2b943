#include "base/visible_text.h"

#include <doctest/doctest.h>
#include <pty.h>
#include <unistd.h>

#include <string>

#include "base/error.h"
#include "base/unique_fd.h"

namespace nvllm {
namespace {

std::string shown(std::string_view text) {
  return visible_text(text, Breaks::keep);
}

TEST_CASE("escapes and other control characters are shown, newlines and tabs stay") {
  CHECK(shown("plain\n\ttext, \u00e4\u4f60\U0001F600") == "plain\n\ttext, \u00e4\u4f60\U0001F600");
  CHECK(shown("\033]0;title\007") == "\\x1b]0;title\\x07");
  CHECK(shown("a\177b") == "a\\x7fb");
  CHECK(shown(std::string_view("\0", 1)) == "\\x00");
  CHECK(shown("one\r\ntwo\rthree") == "one\ntwo\\x0dthree");
}

TEST_CASE("C1 controls are shown, in UTF-8 and as bytes") {
  CHECK(shown("\u009b31m") == "\\u009b31m");
  CHECK(shown("\u0080\u009f\u00a0") == "\\u0080\\u009f\u00a0");
  CHECK(shown("\x9b"
              "31m") == "\\x9b31m");
}

TEST_CASE("what changes the direction of writing is shown") {
  CHECK(shown("\u202a\u202b\u202c\u202d\u202e") == "\\u202a\\u202b\\u202c\\u202d\\u202e");
  CHECK(shown("\u2066\u2067\u2068\u2069") == "\\u2066\\u2067\\u2068\\u2069");
  CHECK(shown("\u2029\u202f\u2065\u206a") == "\u2029\u202f\u2065\u206a");
}

TEST_CASE("what is no UTF-8 is shown as bytes, and hides nothing behind it") {
  CHECK(shown("\xc3") == "\\xc3");
  CHECK(shown("\xc3\033") == "\\xc3\\x1b");
  CHECK(shown("\xe2\x80\033[m") == "\\xe2\\x80\\x1b[m");
  CHECK(shown("\xc1\x9b") == "\\xc1\\x9b");           // overlong
  CHECK(shown("\xe0\x82\x9b") == "\\xe0\\x82\\x9b");  // overlong
  CHECK(shown("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // a surrogate
  CHECK(shown("\xff\xf5") == "\\xff\\xf5");
}

TEST_CASE("a text can be made one line") {
  CHECK(visible_text("a\nb\tc\r\n", Breaks::none) == "a\\nb\\x09c\\x0d\\n");
}

TEST_CASE("terminals get visible text, pipes get what there is") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  CHECK(visible_on(writer.get(), "\033[m") == "\033[m");
  int master = -1, slave = -1;
  REQUIRE(::openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
  const UniqueFd outside(master), terminal(slave);
  CHECK(visible_on(terminal.get(), "\033[m\n") == "\\x1b[m\n");
}

}  // namespace
}  // namespace nvllm
