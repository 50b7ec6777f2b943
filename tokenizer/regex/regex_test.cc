#include "tokenizer/regex/regex.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const RegexProgram program = compile_regex(pattern);
  RegexMatcher matcher(program, text);
  std::vector<std::string> found;
  std::size_t at = 0;
  while (const auto match = matcher.next(at)) {
    found.emplace_back(text.substr(match->begin, match->end - match->begin));
    at = match->end;
  }
  return found;
}

using Strings = std::vector<std::string>;

TEST_CASE("regex: alternatives are tried in order, quantifiers take what they can") {
  CHECK(matches("a|ab", "ab") == Strings{"a"});
  CHECK(matches("ab|a", "aba") == Strings{"ab", "a"});
  CHECK(matches("a*?b|a", "aab") == Strings{"aab"});
  CHECK(matches("(?:ab){2,3}", "ababababab") == Strings{"ababab", "abab"});
  CHECK(matches("a{,2}b", "aaab") == Strings{"aab"});
  CHECK(matches("x*", "axb") == Strings{"", "x", ""});
  CHECK(matches("a{2", "aa{2") == Strings{"a{2"});
}

TEST_CASE("regex: + after ? * + is possessive, after an interval it repeats") {
  CHECK(matches("a++a", "aaa").empty());
  CHECK(matches("a?+a", "a").empty());
  CHECK(matches("\\d{1,3}+5", "12345") == Strings{"12345"});
}

TEST_CASE("regex: classes") {
  CHECK(matches("[a-c]+", "abcd") == Strings{"abc"});
  CHECK(matches("[^\\s\\p{L}]+", "a1! é") == Strings{"1!"});
  CHECK(matches("[\\w-]+", "a-b c") == Strings{"a-b", "c"});
  CHECK(matches("[^\\S\\n]+", "a \t\nb") == Strings{" \t"});
  CHECK(matches("\\p{^L}|\\P{N}", "1a") == Strings{"1", "a"});
  CHECK(matches(".", "a\né") == Strings{"a", "é"});
  CHECK(matches("[一-龥]+", "a中文b") == Strings{"中文"});
  CHECK(matches("[a[b-c]]+", "abcd") == Strings{"abc"});
}

TEST_CASE("regex: (?i:) knows the long s and the Kelvin sign") {
  CHECK(matches("(?i:'s|k)x", "'Sx'\u017Fx\u212Ax") == Strings{"'Sx", "'\u017Fx", "\u212Ax"});
  CHECK(matches("(?i)a|(?:b)", "AB") == Strings{"A", "B"});
}

TEST_CASE("regex: assertions") {
  CHECK(matches("\\s+(?!\\S)", "a   b  ") == Strings{"  ", "  "});
  CHECK(matches("\\s+$", "a  \n b ") == Strings{"  ", " "});
  CHECK(matches("^b", "b\nb") == Strings{"b", "b"});
  CHECK(matches("b\\z", "bb\n").empty());
  CHECK(matches("(?<=a)b|(?<!a)c", "abcac") == Strings{"b", "c"});
}

TEST_CASE("regex: what is not supported is refused by name") {
  const std::pair<const char*, const char*> cases[] = {
      {"\\p{Han}", "\\p{Han}"},
      {"(a)\\1", "\\1"},
      {"(?>a)", "(?..."},
      {"(?=ab)", "look-around"},
      {"[a&&b]", "&&"},
      {"[[:alpha:]]", "[:"},
      {"(ab)++", "possessive"},
      {"(a", "( without )"},
      {"a)", "unmatched )"},
      {"[a", "[ without ]"},
      {"*", "nothing to repeat"},
      {"(?i:\u00E9)", "beyond ASCII"},
      {"\\p{L", "missing }"},
      {"a{9999}", "repetitions"},
      {"(((a{99}){99}){99}){99}", "instructions"},
      {"((((){999}){999}){999}){999}", "instructions"},
      {"(?i:ss)", "\"ss\""}};
  for (const auto& entry : cases) {
    const auto& pattern = entry.first;
    CAPTURE(pattern);
    try {
      compile_regex(pattern);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find(entry.second) != std::string::npos);
    }
  }
}

TEST_CASE("regex: hostile patterns take linear time") {
  const std::string letters(200'000, 'a');
  CHECK(matches("(a*)*b", letters).empty());
  CHECK(matches("(a|a|a)*b", letters).empty());
  CHECK(matches("a+b|a", letters).size() == letters.size());
  CHECK(matches("(?:a?){20}a{20}b", std::string(2000, 'a')).empty());
}

// Text with characters relevant to the patterns, and any others.
std::string random_text(std::mt19937& random) {
  static constexpr const char* kParts[] = {
      "'s",     "'S",      "'\u017F", "'LL",  "'re",        "'",      "a",        "Zz",
      "\u00E9", "e\u0301", "\u4E2D",  "1",    "22",         "\u0663", "\u00BD",   " ",
      "  ",     "\t",      "\n",      "\r\n", "\u00A0",     "\u3000", "\xC2\x85", "\u200B",
      ".",      "!?",      "\u00B2",  "_",    "\U0001F642", "\u20AC", "\u0300",   "\x01"};
  std::string text;
  for (auto count = random() % 12; count > 0; --count) {
    if (random() % 8 == 0) {
      const char32_t c = random() % 0x110000;
      if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
    } else {
      text += kParts[random() % std::size(kParts)];
    }
  }
  return text;
}

TEST_CASE("word scanners match what their patterns match") {
  std::mt19937 random(1);
  for (const WordPattern pattern :
       {WordPattern::kGpt2, WordPattern::kOneDigit, WordPattern::kThreeDigits}) {
    CHECK(known_word_pattern(pattern_text(pattern)) == pattern);
    const RegexProgram program = compile_regex(pattern_text(pattern));
    for (int i = 0; i < 20'000; ++i) {
      const std::string text = random_text(random);
      CAPTURE(text);
      RegexMatcher matcher(program, text);
      for (std::size_t at = 0; at < text.size();) {
        const auto expected = matcher.next(at);
        REQUIRE(expected.has_value());
        REQUIRE(expected->begin == at);
        at = word_end(pattern, text, at);
        REQUIRE(at == expected->end);
      }
    }
  }
}

}  // namespace
}  // namespace nvllm::tokenizer
