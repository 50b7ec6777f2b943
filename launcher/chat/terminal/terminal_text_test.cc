#include "launcher/chat/terminal/terminal_text.h"

#include <doctest/doctest.h>

#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "launcher/chat/terminal/testing/screen.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {
namespace {

std::vector<std::string> clusters_of(const std::string& text) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = next_cluster(text, at);
    all.push_back(text.substr(at, end - at));
    at = end;
  }
  return all;
}

using Clusters = std::vector<std::string>;

TEST_CASE("marks, emoji sequences, flags and syllables are one cluster each") {
  const Clusters each = {"a",
                         "e\u0301",                                     // a combining accent
                         "q\u0307\u0323",                               // two of them
                         "\u2764\uFE0F",                                // a variation selector
                         "\U0001F468\u200D\U0001F469\u200D\U0001F467",  // a family, joined
                         "\U0001F44D\U0001F3FD",                        // a skin colour
                         "\U0001F1E9\U0001F1EA",                        // two flags
                         "\U0001F1EB\U0001F1F7",
                         "\U0001F3F4\U000E0067\U000E0062\U000E007F",  // a region's flag
                         "1\uFE0F\u20E3",                             // a keycap
                         "\u1112\u1161\u11AB",                        // Hangul in three parts
                         "\uD55C",
                         "\u0915\u093F",  // a spacing mark
                         "\u4F60",
                         "z"};
  std::string text;
  for (const std::string& one : each) text += one;
  CHECK(clusters_of(text) == each);
  std::size_t at = text.size();
  for (auto one = each.rbegin(); one != each.rend(); ++one) {
    const std::size_t begin = previous_cluster(text, at);
    CHECK(text.substr(begin, at - begin) == *one);
    at = begin;
  }
  CHECK(at == 0);
  CHECK(previous_cluster(text, 0) == 0);
  CHECK(next_cluster(text, text.size()) == text.size());
}

TEST_CASE("what joins nothing is a cluster of its own") {
  CHECK(clusters_of("\U0001F1E9\U0001F1EA\U0001F1EB") ==
        Clusters{"\U0001F1E9\U0001F1EA", "\U0001F1EB"});
  CHECK(clusters_of("a\u200Db") == Clusters{"a\u200D", "b"});
  CHECK(clusters_of("\n\u0301x") == Clusters{"\n", "\u0301", "x"});
}

TEST_CASE("columns are those of clusters") {
  CHECK(columns_of("") == 0);
  CHECK(columns_of("abc") == 3);
  CHECK(columns_of("e\u0301x") == 2);
  CHECK(columns_of("\u4F60\u597D") == 4);
  CHECK(columns_of("\U0001F468\u200D\U0001F469\u200D\U0001F467") == 2);
  CHECK(columns_of("\U0001F1E9\U0001F1EA") == 2);
  CHECK(columns_of("\u2764\uFE0F") == 2);
  CHECK(columns_of("\u1112\u1161\u11AB") == 2);
}

TEST_CASE("the beginning of a line is where the search for clusters begins") {
  const std::string text = "ab\ncd";
  CHECK(previous_cluster(text, 3) == 2);
  CHECK(previous_cluster(text, 4) == 3);
  CHECK(previous_cluster("\n\n", 2) == 1);
}

using testing::Screen;

// Converts newlines to "\r\n" like a terminal in cooked output mode.
std::string with_returns(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\n' ? std::string("\r\n") : std::string(1, c);
  return out;
}

// What a terminal of this width shows for the text, which arrives in pieces of `piece` characters.
std::string shown(const std::string& text, std::size_t columns, std::size_t piece = 1) {
  Screen screen(50, columns);
  WrappedText wrapped([columns] { return columns; });
  std::string next;
  std::size_t count = 0;
  tokenizer::for_each_char(text, [&](char32_t, std::string_view bytes) {
    next += bytes;
    if (++count % piece != 0) return;
    screen.write(with_returns(wrapped.push(next)));
    next.clear();
  });
  screen.write(with_returns(wrapped.push(next)));
  return screen.text();
}

TEST_CASE("words are moved to the next line whole") {
  CHECK(shown("one two three four", 10) == "one two\nthree four");
  CHECK(shown("exactly10! and", 10) == "exactly10!\nand");
  CHECK(shown("12345 7890 abc", 10) == "12345 7890\nabc");
  CHECK(shown("so exactly10! and", 10) == "so\nexactly10!\nand");
  CHECK(shown("so\n exactly10! and", 10) == "so\n\nexactly10!\nand");
  CHECK(shown("a\nb  c\n\nd", 10) == "a\nb  c\n\nd");
}

TEST_CASE("a word longer than a line is broken by the terminal alone") {
  CHECK(shown("see abcdefghijklmnop x", 10) == "see\nabcdefghij\nklmnop x");
  CHECK(shown("abcdefghijklmnopqrstuvw", 10) == "abcdefghij\nklmnopqrst\nuvw");
}

TEST_CASE("wide characters take two columns, and may begin a line each") {
  CHECK(shown("\u4F60\u597D\u4E16\u754C\u4F60\u597D", 9) ==
        "\u4F60\u597D\u4E16\u754C\n\u4F60\u597D");
  CHECK(shown("ab \u4F60\u597D\u4E16\u3002x", 9) == "ab \u4F60\u597D\n\u4E16\u3002x");
  CHECK(shown("abcdefg \U0001F468\u200D\U0001F469\u200D\U0001F467 i", 10) ==
        "abcdefg \U0001F468\u200D\U0001F469\u200D\U0001F467\ni");
}

TEST_CASE("colours take no column and stay with their word") {
  CHECK(shown("\033[2mone two\033[0m three", 8, 100) == "one two\nthree");
  WrappedText wrapped([] { return std::size_t{6}; });
  CHECK(wrapped.push("abc \033[2mde") == "abc \033[2mde");
  CHECK(wrapped.push("f") == "\033[5G\033[K\ndef");
}

TEST_CASE("a word that comes in one piece is never written twice") {
  WrappedText wrapped([] { return std::size_t{10}; });
  CHECK(wrapped.push("one two three") == "one two \nthree");
  CHECK(wrapped.push(" and") == " and");
  CHECK(wrapped.push("roids") == "r\033[7G\033[K\nandroids");
}

TEST_CASE("without a width nothing is broken; tabs go to the next stop, other controls nowhere") {
  WrappedText plain([] { return std::size_t{0}; });
  CHECK(plain.push("a\tb\033c") == "a\tb\033c");
  CHECK(shown("a\tb\x07!", 20) == "a       b!");
}

// Random words of random characters in pieces of random sizes: no word that fits in a line is ever
// broken, and no character is lost.
TEST_CASE("no word is broken, however the pieces fall") {
  std::mt19937 random(7);
  const std::string letters[] = {"a", "b", "e\u0301", "\u00E4", "x", "-", "\u2764\uFE0F"};
  for (int round = 0; round < 300; ++round) {
    const std::size_t columns = 8 + random() % 30;
    std::string text;
    for (int word = 0; word < 30; ++word) {
      const std::size_t length = 1 + random() % 4;
      for (std::size_t i = 0; i < length; ++i) text += letters[random() % std::size(letters)];
      text += random() % 10 == 0 ? "\n" : " ";
    }
    const std::string screen = shown(text, columns, 1 + random() % 7);
    std::istringstream expected(text), got(screen);
    std::string word, other;
    while (expected >> word) {
      other.clear();
      got >> other;
      REQUIRE(other == word);
    }
    got >> other;
    REQUIRE(got.eof());
  }
}

}  // namespace

}  // namespace nvllm::launcher
