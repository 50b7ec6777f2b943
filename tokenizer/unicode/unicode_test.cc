#include "tokenizer/unicode/unicode.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_text.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

std::string repaired(std::string_view bytes) {
  std::string out;
  append_valid_utf8(out, bytes);
  return out;
}

TEST_CASE("UTF-8: each maximal invalid part becomes one U+FFFD") {
  const std::string r(kReplacementCharacter);
  CHECK(repaired("plain \xC3\xA9") == "plain \xC3\xA9");
  CHECK(repaired("\xFF") == r);
  CHECK(repaired("a\xE2\x82") == "a" + r);               // cut off by the end
  CHECK(repaired("\xE2\x82z") == r + "z");               // cut off by another character
  CHECK(repaired("\xE0\x80\x80") == r + r + r);          // overlong
  CHECK(repaired("\xED\xA0\x80") == r + r + r);          // a surrogate
  CHECK(repaired("\xF4\x90\x80\x80") == r + r + r + r);  // above U+10FFFF
  CHECK(repaired("\xF0\x9F\x98\xF0\x9F\x98\x80") == r + "\xF0\x9F\x98\x80");
}

TEST_CASE("UTF-8: every character survives encoding and decoding") {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const DecodedChar decoded = decode_utf8(text.data());
    if (decoded.c != c || decoded.size != text.size() || valid_utf8_prefix(text) != text.size()) {
      FAIL("U+" << static_cast<unsigned>(c));
    }
  }
}

TEST_CASE("characters have the categories and flags that Unicode gives them") {
  const auto category = [](char32_t c) { return static_cast<Category>(char_record(c).category); };
  CHECK(category(U'a') == Category::kLl);
  CHECK(category(U'Ω') == Category::kLu);
  CHECK(category(U'中') == Category::kLo);
  CHECK(category(U'²') == Category::kNo);
  CHECK(category(0x301) == Category::kMn);
  CHECK(category(0x10FFFF) == Category::kCn);
  CHECK(char_record(0x301).ccc == 230);
  CHECK(is_white_space(0x85));
  CHECK(is_white_space(0x3000));
  CHECK_FALSE(is_white_space(0x200B));
  CHECK(lower_case(0x130) == std::u32string_view(U"i\u0307"));
}

TEST_CASE("normalization equals Hugging Face's") {
  std::ifstream file("tokenizer/testdata/normalization.jsonl");
  REQUIRE(file);
  const std::pair<const char*, NormalizerStep> steps[] = {
      {"NFC", NormalForm::kNfc},   {"NFD", NormalForm::kNfd},  {"NFKC", NormalForm::kNfkc},
      {"NFKD", NormalForm::kNfkd}, {"Lowercase", Lowercase{}}, {"StripAccents", StripAccents{}}};
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const auto expected = parse_json(line);
    for (const auto& entry : steps) {
      const char* const name = entry.first;
      CAPTURE(name);
      CAPTURE(line);
      Normalizer normalizer;
      normalizer.add(entry.second);
      CHECK(normalizer.apply(expected["text"].get<std::string>()).text == expected[name]);
    }
  }
  CHECK(lines > 100);
}

TEST_CASE("normalization: Hangul is put together and taken apart") {
  CHECK(normalize_unicode("각", NormalForm::kNfd) == "\u1100\u1161\u11A8");
  CHECK(normalize_unicode("\u1100\u1161\u11A8", NormalForm::kNfc) == "각");
  CHECK(normalize_unicode("가\u11A8", NormalForm::kNfc) == "각");
}

TEST_CASE("normalization: a million combining marks are sorted in a moment") {
  std::string text = "a", expected = "a";
  for (int i = 0; i < 500'000; ++i) text += "\u0301\u0323";
  for (int i = 0; i < 500'000; ++i) expected += "\u0323";
  for (int i = 0; i < 500'000; ++i) expected += "\u0301";
  CHECK((normalize_unicode(text, NormalForm::kNfd) == expected));
}

}  // namespace
}  // namespace nvllm::tokenizer
