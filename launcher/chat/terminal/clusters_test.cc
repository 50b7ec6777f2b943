#include "launcher/chat/terminal/clusters.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

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

}  // namespace
}  // namespace nvllm::launcher
