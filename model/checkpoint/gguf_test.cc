// The header of GGUF files: what is read of it, and the error text of everything wrong with one.
#include "model/checkpoint/gguf.h"

#include <doctest/doctest.h>

#include <limits>
#include <span>
#include <string>

#include "base/error.h"
#include "model/testing/gguf_builder.h"

namespace nvllm::model {
namespace {

using namespace std::string_literals;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

GgufHeader parse(const std::string& file) {
  auto header = parse_gguf(bytes_of(file), file.size(), "FILE");
  REQUIRE(header);
  return std::move(*header);
}

std::string error_of(const std::string& file) {
  try {
    (void)parse_gguf(bytes_of(file), file.size(), "FILE");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("metadata of every value type") {
  using B = GgufBuilder;
  B b;
  b.raw("u8", 0, B::bytes_of(std::uint8_t{200})).raw("i8", 1, B::bytes_of(std::int8_t{-100}));
  b.raw("u16", 2, B::bytes_of(std::uint16_t{65535})).raw("i16", 3, B::bytes_of(std::int16_t{-9}));
  b.u32("u32", 4'000'000'000).raw("i32", 5, B::bytes_of(std::int32_t{-7}));
  b.f32("f32", 1e-5f).raw("bool", 7, B::bytes_of(std::uint8_t{1})).text("text", "words");
  b.texts("texts", {"a", "", "longer"});
  b.raw("numbers", 9, B::bytes_of(std::uint32_t{2}) + B::bytes_of(std::uint64_t{3}) + "abcdef");
  b.raw("u64", 10, B::bytes_of(std::uint64_t{1} << 62))
      .raw("i64", 11, B::bytes_of(std::int64_t{-1}));
  b.raw("f64", 12, B::bytes_of(0.1)).text("last", "is read too");
  for (const std::uint32_t version : {2u, 3u}) {
    b.version = version;
    const GgufMetadata m = parse(b.file()).metadata;
    CHECK(m.integer("u8") == 200);
    CHECK(m.integer("i8") == -100);
    CHECK(m.integer("u16") == 65535);
    CHECK(m.integer("i16") == -9);
    CHECK(m.integer("u32") == 4'000'000'000);
    CHECK(m.integer("i32") == -7);
    CHECK(m.number("f32") == 1e-5);  // as it was written, not as float32 rounds it
    CHECK(m.text("text") == "words");
    CHECK(m.integer("u64") == std::int64_t{1} << 62);
    CHECK(m.integer("i64") == -1);
    CHECK(m.number("f64") == 0.1);
    CHECK(m.text("last") == "is read too");
    CHECK(m.integer("none") == std::nullopt);
    CHECK_THROWS_WITH_AS((void)m.integer("text"),
                         "FILE: metadata text: expected a whole number, found \"words\"", Error);
    CHECK_THROWS_WITH_AS((void)m.integer("texts"),
                         "FILE: metadata texts: expected a whole number, found an array of 3",
                         Error);
    CHECK_THROWS_WITH_AS((void)m.text("numbers"),
                         "FILE: metadata numbers: expected a text, found an array of 3", Error);
    CHECK_THROWS_WITH_AS((void)m.number("bool"),
                         "FILE: metadata bool: expected a finite number, found true", Error);
    CHECK_THROWS_WITH_AS((void)m.required_integer("none"), "FILE: metadata none is missing", Error);
  }
}

TEST_CASE("texts in angle brackets are found, although the others are skipped") {
  GgufBuilder b;
  b.texts("tokens", {"a", "<b", "<|im_end|>", "c>", "<eos>", "<eos>"}).u32("number", 1);
  const GgufMetadata m = parse(b.file()).metadata;
  CHECK(m.index_of("tokens", "<|im_end|>") == 2);
  CHECK(m.index_of("tokens", "<eos>") == 4);
  CHECK(m.index_of("tokens", "<bos>") == std::nullopt);
  CHECK(m.index_of("tokens", "a") == std::nullopt);
  CHECK(m.index_of("none", "<eos>") == std::nullopt);
  CHECK_THROWS_WITH_AS((void)m.index_of("number", "<eos>"),
                       "FILE: metadata number: expected texts, found 1", Error);
  CHECK_THROWS_WITH_AS((void)m.texts("tokens"),
                       "FILE: metadata tokens: expected texts, found an array of 6", Error);
}

TEST_CASE("a number that is none, or too large") {
  GgufBuilder b;
  b.f32("nan", std::numeric_limits<float>::quiet_NaN());
  b.raw("huge", 10, GgufBuilder::bytes_of(~std::uint64_t{0}));
  const GgufMetadata m = parse(b.file()).metadata;
  CHECK_THROWS_WITH_AS((void)m.number("nan"),
                       "FILE: metadata nan: expected a finite number, found nan", Error);
  CHECK_THROWS_WITH_AS((void)m.integer("huge"),
                       "FILE: metadata huge: expected a whole number, found 18446744073709551615",
                       Error);
}

TEST_CASE("tensors: dimensions turned around, offsets in the file, any alignment") {
  for (const std::uint32_t alignment : {8u, 32u, 4096u}) {
    GgufBuilder b;
    b.alignment = alignment;
    b.u32("general.alignment", alignment);
    b.counting("a", {3, 2}).tensor("q", GgufType::q8_0, {64, 5}, std::string(340, 'x'));
    const std::string file = b.file();
    const GgufHeader header = parse(file);
    REQUIRE(header.tensors.size() == 2);
    const StoredTensor& a = header.tensors[0];
    CHECK(a.stored_name == "a");
    CHECK(a.shape == std::vector<std::int64_t>{2, 3});
    CHECK(a.encoding == Encoding::f32);
    CHECK(a.bytes == 24);
    CHECK(a.offset % alignment == 0);
    CHECK(file.substr(a.offset + 4, 4) == GgufBuilder::bytes_of(1.0f));
    const StoredTensor& q = header.tensors[1];
    CHECK(q.shape == std::vector<std::int64_t>{5, 64});
    CHECK(q.bytes == 340);
    CHECK(q.row_bytes() == 68);
    CHECK(file.find(std::string(340, 'x')) == q.offset);
  }
}

TEST_CASE("a tensor of no bytes lies in the file, though that ends with the header") {
  const std::string file = GgufBuilder().counting("empty", {0, 4}).header();
  REQUIRE(file.size() % 32 != 0);
  const GgufHeader header = parse(file);
  CHECK(header.tensors[0].bytes == 0);
  CHECK(header.tensors[0].offset <= file.size());
}

TEST_CASE("a part of the header asks for more, until it is whole") {
  const std::string file = GgufBuilder().text("key", "value").counting("a", {4}).file();
  const std::size_t header = GgufBuilder().text("key", "value").counting("a", {4}).header().size();
  for (std::size_t size = 0; size <= file.size(); ++size) {
    const auto parsed = parse_gguf(bytes_of(file).first(size), file.size(), "FILE");
    CHECK(parsed.has_value() == (size >= header));
  }
}

TEST_CASE("every truncation of a file is an error") {
  const std::string file = GgufBuilder().u32("key", 7).counting("a", {8}).file();
  for (std::size_t size = 0; size < file.size(); ++size) {
    CHECK(error_of(file.substr(0, size)) != "no error");
  }
  CHECK(error_of(file) == "no error");
  CHECK(error_of(file.substr(0, 30)) ==
        "FILE: a metadata key at byte 24 needs 8 bytes, the file has 6 more: truncated or corrupt");
  CHECK(error_of(file.substr(0, file.size() - 1)) ==
        "FILE: tensor a: F32 [8]: 32 bytes at byte 0 of the data, which has 31: the file is "
        "truncated or its header wrong");
}

TEST_CASE("other kinds of files") {
  CHECK(
      error_of("") ==
      "FILE: the magic number at byte 0 needs 4 bytes, the file has 0 more: truncated or corrupt");
  CHECK(error_of("GGML\3\0\0\0"s) == "FILE: not a GGUF file");
  CHECK(error_of("GGUF\1\0\0\0"s) == "FILE: expected GGUF version 2 or 3, found version 1");
  CHECK(error_of("GGUF\4\0\0\0"s) == "FILE: expected GGUF version 2 or 3, found version 4");
  CHECK(error_of("GGUF\0\0\0\3"s) == "FILE: expected GGUF version 2 or 3, found a big endian file");
}

TEST_CASE("counts that no file of this size can have") {
  GgufBuilder b;
  b.tensor_count = 1'000'000'000'000;
  CHECK(error_of(b.file()) ==
        "FILE: 1000000000000 tensors and 0 metadata do not fit into a file of 32 bytes: truncated "
        "or corrupt");
  b.tensor_count = 0;
  b.pair_count = std::uint64_t{1} << 63;
  CHECK(error_of(b.file()) ==
        "FILE: 0 tensors and 9223372036854775808 metadata do not fit into a file of 32 bytes: "
        "truncated or corrupt");
}

TEST_CASE("values that lie about their length, or have no known type") {
  using B = GgufBuilder;
  const auto array = [](std::uint32_t type, std::uint64_t count) {
    return B::bytes_of(type) + B::bytes_of(count);
  };
  CHECK(error_of(B().raw("k", 8, B::bytes_of(~std::uint64_t{0})).file()) ==
        "FILE: metadata k at byte 45 needs 18446744073709551615 bytes, the file has 19 more: "
        "truncated or corrupt");
  CHECK(error_of(B().raw("k", 9, array(4, std::uint64_t{1} << 62)).file()) ==
        "FILE: metadata k at byte 49 needs 4611686018427387904 times 4 bytes, the file has 15 "
        "more: truncated or corrupt");
  CHECK(error_of(B().raw("k", 9, array(8, std::uint64_t{1} << 60)).file()) ==
        "FILE: metadata k at byte 57 needs 8 bytes, the file has 7 more: truncated or corrupt");
  CHECK(error_of(B().raw("k", 9, array(9, 1)).file()) ==
        "FILE: metadata k: an array of value type 9, which is unknown here");
  CHECK(error_of(B().raw("k", 13, "").file()) == "FILE: metadata k: value type 13 is unknown here");
  CHECK(error_of(B().u32("k", 1).u32("k", 1).file()) == "FILE: metadata k is there twice");
  CHECK(error_of(B().u32(std::string(70'000, 'k'), 1).file()) ==
        "FILE: a metadata key at byte 32: expected at most 65536 bytes, found 70000");
  CHECK(error_of(B().u32("general.alignment", 24).file()) ==
        "FILE: metadata general.alignment: expected a power of two, found 24");
  CHECK(error_of(B().u32("general.alignment", 0).file()) ==
        "FILE: metadata general.alignment: expected a power of two, found 0");
}

TEST_CASE("tensors that cannot be") {
  using B = GgufBuilder;
  const auto error_of_tensor = [](std::uint32_t type, const std::vector<std::uint64_t>& dims,
                                  std::uint64_t offset = 0) {
    return error_of(B().tensor_at("t", type, dims, offset).file() + std::string(64, 'x'));
  };
  CHECK(error_of_tensor(0, {}) == "FILE: tensor t: expected 1 to 4 dimensions, found 0");
  CHECK(error_of_tensor(0, {1, 1, 1, 1, 1}) ==
        "FILE: tensor t: expected 1 to 4 dimensions, found 5");
  CHECK(error_of_tensor(10, {256, 1}) ==
        "FILE: tensor t: expected type F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, "
        "Q6_K or MXFP4, found Q2_K");
  CHECK(error_of_tensor(40, {256, 1}).ends_with("found NVFP4"));
  CHECK(error_of_tensor(99, {256, 1}).ends_with("found type 99"));
  CHECK(error_of_tensor(8, {33, 1}) ==
        "FILE: tensor t: Q8_0 [1, 33]: expected rows of whole blocks of 32 elements");
  CHECK(error_of_tensor(12, {128, 2}) ==
        "FILE: tensor t: Q4_K [2, 128]: expected rows of whole blocks of 256 elements");
  CHECK(error_of_tensor(8, {32}) ==
        "FILE: tensor t: Q8_0 [32]: expected rows of whole blocks of 32 elements");
  CHECK(error_of_tensor(0, {~std::uint64_t{0}, 1}) ==
        "FILE: tensor t: a dimension of 18446744073709551615 is too large to exist");
  CHECK(error_of_tensor(0, {std::uint64_t{1} << 40, std::uint64_t{1} << 40}) ==
        "FILE: tensor t: shape [1099511627776, 1099511627776] is too large to exist");
  CHECK(error_of_tensor(0, {4, 5}) ==
        "FILE: tensor t: F32 [5, 4]: 80 bytes at byte 0 of the data, which has 64: the file is "
        "truncated or its header wrong");
  CHECK(error_of_tensor(0, {4}, 64) ==
        "FILE: tensor t: F32 [4]: 16 bytes at byte 64 of the data, which has 64: the file is "
        "truncated or its header wrong");
  CHECK(error_of_tensor(0, {4}, ~std::uint64_t{31})
            .starts_with(
                "FILE: tensor t: F32 [4]: 16 bytes at byte 18446744073709551584 of the data"));
  CHECK(error_of_tensor(0, {4}, 8) ==
        "FILE: tensor t: expected an offset that is a multiple of 32, found 8");
}

TEST_CASE("tensors that share bytes or a name; the order of offsets is free") {
  const auto error_of_two = [](const std::string& second, std::uint64_t first_offset,
                               std::uint64_t second_offset) {
    return error_of(GgufBuilder()
                        .tensor_at("a", 0, {16}, first_offset)
                        .tensor_at(second, 0, {16}, second_offset)
                        .file() +
                    std::string(128, 'x'));
  };
  CHECK(error_of_two("b", 0, 64) == "no error");
  CHECK(error_of_two("b", 64, 0) == "no error");
  CHECK(error_of_two("b", 0, 32) ==
        "FILE: tensor b: begins at byte 128 of the file, inside a, which ends at 160");
  CHECK(error_of_two("b", 32, 0) ==
        "FILE: tensor a: begins at byte 128 of the file, inside b, which ends at 160");
  CHECK(error_of_two("a", 0, 64) == "FILE: tensor a is there twice");
}

TEST_CASE("names that no terminal should see are made printable") {
  CHECK(error_of(GgufBuilder().tensor_at("\x1b[31m\xff\n", 0, {}, 0).file()) ==
        R"(FILE: tensor \x1b[31m\xff\n: expected 1 to 4 dimensions, found 0)");
}

}  // namespace
}  // namespace nvllm::model
