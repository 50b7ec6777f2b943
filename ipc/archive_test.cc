#include "ipc/archive.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "base/error.h"
#include "ipc/registry.h"
#include "testing/error_of.h"

namespace nvllm::ipc {
namespace {

using testing::error_of;

enum class Color : std::uint8_t { red, blue };

struct Token {
  std::int32_t id;
  float score;
  bool operator==(const Token&) const = default;
};

struct Request {
  std::string text;
  std::vector<std::int32_t> tokens;
  std::optional<double> temperature;
  std::map<std::string, std::vector<bool>> flags;
  bool operator==(const Request&) const = default;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(text, tokens, temperature, flags);
  }
};

struct Tree {
  std::vector<Tree> children;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(children);
  }
};

template <typename T>
T round_trip(const T& value) {
  ArchiveWriter out;
  out(value);
  ArchiveReader in(out.bytes());
  T result = in.get<T>();
  in.finish();
  return result;
}

}  // namespace

template <>
inline constexpr bool kArchiveAsBytes<Token> = true;

TEST_CASE("values of every kind come back as they were") {
  CHECK(round_trip(true));
  CHECK(round_trip(std::numeric_limits<std::int64_t>::min()) ==
        std::numeric_limits<std::int64_t>::min());
  CHECK(round_trip(0.1F) == 0.1F);
  CHECK(round_trip(Color::blue) == Color::blue);
  CHECK(round_trip(std::string("a\0b", 3)) == std::string("a\0b", 3));
  CHECK(round_trip(std::string()).empty());
  CHECK(round_trip(std::vector<Token>{{1, 0.5F}, {2, -1}}) ==
        std::vector<Token>{{1, 0.5F}, {2, -1}});
  CHECK(round_trip(std::array<int, 3>{1, 2, 3}) == std::array<int, 3>{1, 2, 3});
  CHECK(round_trip(std::pair(1, std::string("one"))) == std::pair(1, std::string("one")));
  CHECK(round_trip(std::tuple(1, 2.5, std::string("x"))) == std::tuple(1, 2.5, std::string("x")));
  CHECK(round_trip(std::tuple<>()) == std::tuple<>());
  CHECK(!round_trip(std::optional<int>()).has_value());
  const Request request{"hi", {1, 2, 3}, 0.6, {{"a", {true, false}}, {"b", {}}}};
  CHECK(round_trip(std::vector<Request>{request, {}}) == std::vector<Request>{request, {}});
}

TEST_CASE("views arrive as what owns the same") {
  ArchiveWriter out;
  const std::vector<int> numbers = {1, 2};
  out(std::string_view("text"), "literal", std::span<const int>(numbers));
  ArchiveReader in(out.bytes());
  CHECK(in.get<std::string>() == "text");
  CHECK(in.get<std::string>() == "literal");
  CHECK(in.get<std::vector<int>>() == numbers);
}

TEST_CASE("a cleared writer begins a new message") {
  ArchiveWriter out;
  out(std::string(10'000, 'x'));
  out.clear();
  out(7);
  ArchiveReader in(out.bytes());
  CHECK(in.get<int>() == 7);
  in.finish();
}

TEST_CASE("every truncation of a message is an Error") {
  ArchiveWriter out;
  out(Request{"hello", {1, 2, 3}, 0.5, {{"key", {true}}}});
  for (std::size_t size = 0; size < out.bytes().size(); ++size) {
    CHECK_THROWS_AS(
        [&] {
          ArchiveReader in(out.bytes().first(size));
          in.get<Request>();
        }(),
        Error);
  }
}

TEST_CASE("a lying length allocates nothing") {
  ArchiveWriter out;
  out(std::uint64_t{1} << 60, 7);
  ArchiveReader numbers(out.bytes());
  CHECK(
      error_of([&] { numbers.get<std::vector<double>>(); }) ==
      "message claims 1152921504606846976 elements of at least 8 bytes, but only 4 bytes are left");
  ArchiveReader text(out.bytes());
  CHECK_THROWS_AS(text.get<std::string>(), Error);
  ArchiveReader requests(out.bytes());
  CHECK_THROWS_AS(requests.get<std::vector<Request>>(), Error);
}

TEST_CASE("another version, bytes left over, bad bools and bottomless nesting are Errors") {
  ArchiveWriter out;
  out(std::uint8_t{2});
  std::vector<std::byte> bytes(out.bytes().begin(), out.bytes().end());
  CHECK(error_of([&] { ArchiveReader(bytes).finish(); }) ==
        "message has 1 bytes more than its types ask for");
  CHECK(error_of([&] { ArchiveReader(bytes).get<bool>(); }) ==
        "message holds 2 where a bool should be");
  bytes[0] = std::byte{0x7f};
  CHECK(error_of([&] { ArchiveReader{bytes}; }) ==
        "message of version 0x4e56007f, this program speaks version 0x4e560001; run the same build "
        "in "
        "all processes");

  Tree tree;
  for (int level = 0; level < 200; ++level) {
    Tree above;
    above.children.push_back(std::move(tree));
    tree = std::move(above);
  }
  out.clear();
  out(tree);
  CHECK(error_of([&] { ArchiveReader(out.bytes()).get<Tree>(); }) == "message is nested too deep");
}

TEST_CASE("signatures tell argument types apart, and text and spans meet what they arrive as") {
  CHECK(signature_hash<int>() != signature_hash<long>());
  CHECK(signature_hash<int, int>() != signature_hash<int>());
  CHECK(signature_hash<>() != signature_hash<int>());
  CHECK(signature_hash<const char*>() == signature_hash<const std::string&>());
  CHECK(signature_hash<char[5]>() == signature_hash<std::string_view>());
  CHECK(signature_hash<std::span<const int>>() == signature_hash<std::vector<int>>());
  CHECK(signature_text<int, const std::string&>() == "(int, string)");
}

}  // namespace nvllm::ipc
