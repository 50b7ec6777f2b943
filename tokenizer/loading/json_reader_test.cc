#include "tokenizer/loading/json_reader.h"

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"

namespace nvllm::tokenizer {
namespace {

TEST_CASE("JSON reader: objects, arrays, strings, numbers") {
  JsonReader in(
      R"( {"a" : [ 1, 4294967295 ], "b\n\u00e9\ud83d\ude00" : true, "c":{"d":[{}, "]"]} } )");
  std::string_view key;
  in.begin_object();
  REQUIRE(in.next_key(key));
  CHECK(key == "a");
  in.begin_array();
  REQUIRE(in.next_item());
  CHECK(in.read_uint32() == 1);
  REQUIRE(in.next_item());
  CHECK(in.read_uint32() == 4294967295);
  CHECK_FALSE(in.next_item());
  REQUIRE(in.next_key(key));
  CHECK(key == "b\n\u00E9\U0001F600");
  CHECK(in.read_bool());
  REQUIRE(in.next_key(key));
  CHECK(in.raw_value() == R"({"d":[{}, "]"]})");
  CHECK_FALSE(in.next_key(key));
  in.finish();
}

void read_all(const std::string& text) {
  JsonReader in(text);
  std::string_view key;
  in.begin_object();
  while (in.next_key(key)) {
    switch (in.peek()) {
      case '"': in.read_string(); break;
      case 't': in.read_bool(); break;
      case '1': in.read_uint32(); break;
      default: in.skip_value();
    }
  }
  in.finish();
}

TEST_CASE("JSON reader: what is broken is refused, with its place") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "byte 0: the text ends where an object should be"},
      {"[]", "byte 0: expected an object"},
      {"{\"a\"", "byte 4: the text ends where a colon should be"},
      {"{\"a\" 1}", "byte 5: expected a colon"},
      {"{\"a\":\"x}", "byte 8: the text ends where the end of a string should be"},
      {"{\"a\":1 \"b\":1}", "byte 7: expected a comma or }"},
      {"{\"a\":1.5}", "byte 5: expected a whole number from 0 to 4294967295"},
      {"{\"a\":18446744073709551616}", "byte 5: expected a whole number from 0 to 4294967295"},
      {"{\"a\":\"\\x\"}", "byte 7: expected one of \"\\/bfnrtu after a backslash"},
      {"{\"a\":\"\\ud800\"}", "byte 12: expected a pair of surrogates"},
      {"{\"a\":[1}", "byte 7: expected a value"},
      {"{\"a\":[", "byte 6: the text ends where a value should be"},
      {"{} x", "byte 3: expected the end of the text"},
      {"{\"\xFF\":1}", "byte 2: not UTF-8"}};
  for (const auto& entry : cases) {
    const auto& text = entry.first;
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(read_all(text), entry.second, Error);
  }
}

TEST_CASE("JSON reader: a million open brackets are no stack overflow") {
  CHECK_THROWS_AS(read_all("{\"a\":" + std::string(1'000'000, '[')), Error);
}

}  // namespace
}  // namespace nvllm::tokenizer
