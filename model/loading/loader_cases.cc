// What loading promises, on whichever backend is linked.
#include <algorithm>
#include <array>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "device/testing/backend_under_test.h"
#include "model/loading/loader.h"
#include "model/loading/loader_fixture.h"

namespace nvllm::model {
namespace {

// Whether the ranks' parameters together have every value of every tensor that they name.
bool is_whole(const Assembly& assembly, const TestFiles& files, DType dtype) {
  if (assembly.disagreements() > 0) return false;
  for (const auto& [name, values] : assembly.tensors()) {
    if (values != files.values(name, dtype)) return false;
  }
  return true;
}

LoadReport load(TestParameters& model, const Checkpoint& checkpoint, Backend& backend, DType dtype,
                const LoadOptions& options = {}) {
  model.bind(backend, dtype);
  return load_parameters(model.parameters(), checkpoint, backend, options);
}

// Loads on `ranks` ranks in turn; returns whether together they have everything.
bool loads_whole(const TestFiles& files, const Checkpoint& checkpoint, Backend& backend, int ranks,
                 DType dtype, const LoadOptions& options = {}) {
  Assembly assembly;
  for (int rank = 0; rank < ranks; ++rank) {
    TestParameters model = decoder_of({rank, ranks});
    load(model, checkpoint, backend, dtype, options);
    assembly.add(model, dtype);
  }
  return is_whole(assembly, files, dtype);
}

TEST_CASE("every encoding becomes every type as decode() says") {
  BACKEND_OR_SKIP(backend);
  for (const Encoding encoding : kEncodings) {
    TestFiles files;
    add_decoder_tensors(files, encoding, false);
    const Checkpoint checkpoint = files.write();
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(std::string(name_of(encoding)));
      CAPTURE(std::string(name_of(dtype)));
      CHECK(loads_whole(files, checkpoint, *backend, 1, dtype));
    }
  }
}

TEST_CASE("the parts of 2, 3 and 4 ranks are the whole, also with columns cut inside of blocks") {
  BACKEND_OR_SKIP(backend);
  for (const Encoding encoding : {Encoding::bf16, Encoding::f32, Encoding::q8_0, Encoding::q6_k}) {
    TestFiles files;
    add_decoder_tensors(files, encoding, false);
    const Checkpoint checkpoint = files.write();
    for (const int ranks : {2, 3, 4}) {
      CAPTURE(std::string(name_of(encoding)));
      CAPTURE(ranks);
      CHECK(loads_whole(files, checkpoint, *backend, ranks, DType::bf16));
    }
  }
}

TEST_CASE("rows in rotary order come into Hugging Face's, however they are cut") {
  BACKEND_OR_SKIP(backend);
  for (const Encoding encoding : {Encoding::f16, Encoding::q4_k}) {
    TestFiles files;
    add_decoder_tensors(files, encoding, true);
    const Checkpoint checkpoint = files.write();
    for (const int ranks : {1, 3}) {
      // Less than a row, some rows, between one and two heads of 32 rows, everything.
      for (const std::size_t piece_bytes : {100, 3000, 40000, 0}) {
        CAPTURE(std::string(name_of(encoding)));
        CAPTURE(ranks);
        CAPTURE(piece_bytes);
        CHECK(loads_whole(files, checkpoint, *backend, ranks, DType::f16,
                          {.piece_bytes = piece_bytes}));
      }
    }
  }
}

TEST_CASE("slices that begin and end inside of a head of rotary order") {
  BACKEND_OR_SKIP(backend);
  TestFiles files;
  files.add("q", Encoding::f16, {4 * 64, 32}, 4);
  const Checkpoint checkpoint = files.write();
  TestParameters model;
  model.matrix("a", {rows_of("q", {256, 32}, {0, 7})});
  model.matrix("b", {rows_of("q", {256, 32}, {7, 200})});
  model.matrix("c", {rows_of("q", {256, 32}, {200, 201}), rows_of("q", {256, 32}, {201, 256}, 1)});
  load(model, checkpoint, *backend, DType::f16);
  Assembly assembly;
  assembly.add(model, DType::f16);
  CHECK(is_whole(assembly, files, DType::f16));
}

TEST_CASE("elements of a vector in rotary order come into Hugging Face's") {
  BACKEND_OR_SKIP(backend);
  TestFiles files;
  files.add("q.bias", Encoding::f32, {4 * 16});
  files.order({}, StoredOrder{.outer = 2, .inner = 8});
  const Checkpoint checkpoint = files.write();
  for (const std::size_t piece_bytes : {20, 0}) {
    TestParameters model;
    model.vector("a", {rows_of("q.bias", {64}, {0, 19})});
    model.vector("b", {rows_of("q.bias", {64}, {19, 64})});
    load(model, checkpoint, *backend, DType::f32, {.piece_bytes = piece_bytes});
    Assembly assembly;
    assembly.add(model, DType::f32);
    CHECK(is_whole(assembly, files, DType::f32));
  }
}

// The value heads of 2 key heads with 3 each, after other rows; and those of 3 with 2 each.
TEST_CASE("rows and columns of heads in another order come into Hugging Face's") {
  BACKEND_OR_SKIP(backend);
  for (const Encoding encoding : {Encoding::f32, Encoding::bf16, Encoding::q8_0, Encoding::q4_k}) {
    TestFiles files;
    files.add("in", encoding, {50 + 6 * 16, 256});
    files.order(StoredOrder{.first = 50, .outer = 2, .inner = 3, .size = 16}, {});
    files.add("out", encoding, {20, 6 * 128});
    files.order({}, StoredOrder{.outer = 3, .inner = 2, .size = 128});
    const Checkpoint checkpoint = files.write();
    // Less than a row, less than a head, some heads, everything.
    for (const std::size_t piece_bytes : {100, 3000, 60000, 0}) {
      CAPTURE(std::string(name_of(encoding)));
      CAPTURE(piece_bytes);
      TestParameters model;
      model.matrix("a", {rows_of("in", {146, 256}, {0, 70})});
      model.matrix("b", {rows_of("in", {146, 256}, {70, 146})});
      model.matrix("c", {columns_of("out", {20, 768}, {0, 128})});
      model.matrix("d", {columns_of("out", {20, 768}, {128, 768})});
      load(model, checkpoint, *backend, DType::bf16, {.piece_bytes = piece_bytes});
      Assembly assembly;
      assembly.add(model, DType::bf16);
      CHECK(is_whole(assembly, files, DType::bf16));
    }
  }
}

TEST_CASE("a piece may be smaller than a row, a block or an element") {
  BACKEND_OR_SKIP(backend);
  for (const Encoding encoding : {Encoding::bf16, Encoding::q5_k}) {
    TestFiles files;
    files.add("w", encoding, {3, 1024});
    files.add("v", encoding, {2048});
    const Checkpoint checkpoint = files.write();
    for (const std::size_t piece_bytes : {1, 100, 1000, 1500, 3000}) {
      TestParameters model;
      model.matrix("left", {columns_of("w", {3, 1024}, {0, 301})});
      model.matrix("right", {columns_of("w", {3, 1024}, {301, 1024})});
      model.vector("v", {rows_of("v", {2048}, {100, 2048}), rows_of("v", {2048}, {0, 100}, 1948)});
      load(model, checkpoint, *backend, DType::bf16, {.piece_bytes = piece_bytes});
      Assembly assembly;
      assembly.add(model, DType::bf16);
      CAPTURE(std::string(name_of(encoding)));
      CAPTURE(piece_bytes);
      CHECK(is_whole(assembly, files, DType::bf16));
    }
  }
}

// [0, total) in neighbouring parts, some of them empty.
std::vector<layers::Range> random_parts(std::int64_t total, std::mt19937& random) {
  std::vector<std::int64_t> cuts = {0, total};
  for (unsigned i = random() % 4; i > 0; --i) cuts.push_back(random() % (total + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<layers::Range> parts;
  for (std::size_t i = 1; i < cuts.size(); ++i) parts.push_back({cuts[i - 1], cuts[i]});
  return parts;
}

TEST_CASE("random tensors in random slices, pieces and orders") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const Encoding encoding = kEncodings[random() % std::size(kEncodings)];
    const DType dtype = std::array{DType::f32, DType::bf16, DType::f16}[random() % 3];
    const std::int64_t heads = 1 + random() % 4;
    const std::int64_t rows = heads * 2 * (1 + random() % 40);
    const std::int64_t columns = block_elements(encoding) * (1 + random() % 6);
    TestFiles files;
    files.add("w", encoding, {rows, columns}, random() % 2 == 0 ? heads : 0);
    files.add("v", encoding, {columns});
    const Checkpoint checkpoint = files.write(1 + static_cast<int>(random() % 2));
    TestParameters model;
    for (const layers::Range part : random_parts(columns, random)) {
      // One parameter for these columns, whose rows are slices in reverse.
      std::vector<layers::Slice> slices;
      std::int64_t to_row = rows;
      for (const layers::Range row_part : random_parts(rows, random)) {
        to_row -= row_part.size();
        slices.push_back({"w", {rows, columns}, row_part, part, to_row});
      }
      model.matrix("w", slices);
      model.vector("v", {rows_of("v", {columns}, part)});
    }
    const LoadOptions options{.threads = 1 + static_cast<int>(random() % 4),
                              .piece_bytes = random() % 2 == 0 ? 0 : 1 + random() % 20000,
                              .staged = random() % 2 != 0};
    load(model, checkpoint, *backend, dtype, options);
    Assembly assembly;
    assembly.add(model, dtype);
    CAPTURE(round);
    CHECK(is_whole(assembly, files, dtype));
  }
}

TEST_CASE("parts of rows that lie close together or far apart in the file") {
  BACKEND_OR_SKIP(backend);
  for (const Encoding encoding : {Encoding::f16, Encoding::q8_0}) {
    for (const std::int64_t columns : {64, 2048, 32768}) {  // the rest is above, below a page
      TestFiles files;
      files.add("w", encoding, {50, columns});
      const Checkpoint checkpoint = files.write();
      TestParameters model;
      model.matrix("left", {columns_of("w", {50, columns}, {0, 32})});
      model.matrix("right", {columns_of("w", {50, columns}, {32, columns})});
      load(model, checkpoint, *backend, DType::f16);
      Assembly assembly;
      assembly.add(model, DType::f16);
      CAPTURE(columns);
      CHECK(is_whole(assembly, files, DType::f16));
    }
  }
}

TEST_CASE(
    "checksums equal the reference load's, staged or in place, with any number of threads and "
    "files") {
  BACKEND_OR_SKIP(backend);
  for (const Encoding encoding : {Encoding::bf16, Encoding::f32, Encoding::q4_0}) {
    TestFiles files;
    add_decoder_tensors(files, encoding, true);
    const auto checksums = [&](const Checkpoint& checkpoint, const LoadOptions& options) {
      TestParameters model = decoder_of({1, 3});
      load(model, checkpoint, *backend, DType::bf16, options);
      return model.checksums();
    };
    const Checkpoint single = files.write();
    TestParameters reference = decoder_of({1, 3});
    reference.bind(*backend, DType::bf16);
    reference_load(reference.parameters(), single, *backend);
    const auto expected = reference.checksums();
    for (const bool staged : {false, true}) {
      for (const int threads : {1, 8}) {
        CAPTURE(staged);
        CAPTURE(threads);
        CHECK(checksums(single, {.threads = threads, .piece_bytes = 20000, .staged = staged}) ==
              expected);
      }
    }
    const Checkpoint sharded = files.write(3);
    TestParameters model = decoder_of({1, 3});
    load(model, sharded, *backend, DType::bf16);
    CHECK(model.checksums() == expected);
  }
}

TEST_CASE("safetensors in one file and in three give the same checksums as raw files") {
  BACKEND_OR_SKIP(backend);
  TestFiles files;
  add_decoder_tensors(files, Encoding::bf16, false);
  const auto checksums = [&](const Checkpoint& checkpoint) {
    TestParameters model = decoder_of({0, 2});
    load(model, checkpoint, *backend, DType::bf16);
    return model.checksums();
  };
  const auto expected = checksums(files.write());
  for (const int count : {1, 3}) {
    CAPTURE(count);
    CHECK(checksums(files.write_safetensors(count)) == expected);
  }
}

TEST_CASE("a checksum is of the values, the name and the shape") {
  BACKEND_OR_SKIP(backend);
  TestFiles files;
  files.add("a", Encoding::f32, {4, 6});
  const Checkpoint checkpoint = files.write();
  const auto checksum_of = [&](const std::string& name, std::vector<layers::Slice> slices) {
    TestParameters model;
    model.matrix(name, slices);
    load(model, checkpoint, *backend, DType::f32);
    return model.checksums().front();
  };
  const std::uint64_t one = checksum_of("x", {rows_of("a", {4, 6}, {0, 2})});
  CHECK(checksum_of("x", {rows_of("a", {4, 6}, {0, 2})}) == one);
  CHECK(checksum_of("y", {rows_of("a", {4, 6}, {0, 2})}) != one);
  CHECK(checksum_of("x", {rows_of("a", {4, 6}, {1, 3})}) != one);
  TestParameters flat;
  flat.matrix("x", {rows_of("a", {4, 6}, {0, 2})});
  load(flat, checkpoint, *backend, DType::f32);
  layers::Parameter* const parameter = flat.parameters().front();
  CHECK(checksum(*parameter, *backend) == one);
  parameter->shape = {3, 4};
  CHECK(checksum(*parameter, *backend) != one);
}

TEST_CASE("each of two ranks reads half the bytes") {
  BACKEND_OR_SKIP(backend);
  TestFiles files;
  files.add("column", Encoding::bf16, {128, 8192});
  files.add("row", Encoding::bf16, {128, 8192});
  const Checkpoint checkpoint = files.write();
  for (const int rank : {0, 1}) {
    TestParameters model;
    model.matrix("column", {rows_of("column", {128, 8192}, layers::shard_range(128, {rank, 2}))});
    model.matrix("row", {columns_of("row", {128, 8192}, layers::shard_range(8192, {rank, 2}))});
    const LoadReport report = load(model, checkpoint, *backend, DType::bf16);
    CHECK(report.bytes_read == checkpoint.bytes() / 2);
    CHECK(report.bytes_loaded == checkpoint.bytes() / 2);
    CHECK(report.seconds > 0);
  }
}

TEST_CASE("a rank may own nothing of a tensor, or nothing at all") {
  BACKEND_OR_SKIP(backend);
  TestFiles files;
  files.add("w", Encoding::f32, {4, 6});
  files.add("v", Encoding::f32, {6});
  const Checkpoint checkpoint = files.write();
  TestParameters model;
  model.matrix("no rows", {rows_of("w", {4, 6}, {4, 4})});
  model.matrix("no columns", {columns_of("w", {4, 6}, {6, 6})});
  model.vector("no elements", {rows_of("v", {6}, {3, 3})});
  const LoadReport nothing = load(model, checkpoint, *backend, DType::f32);
  CHECK(nothing.bytes_read == 0);
  CHECK(nothing.bytes_loaded == 0);

  model.vector("elements", {rows_of("v", {6}, {3, 6})});
  CHECK(load(model, checkpoint, *backend, DType::f32).bytes_loaded == 12);
  CHECK(load_parameters({}, checkpoint, *backend, {}).bytes_loaded == 0);
}

TEST_CASE("parameters lie aligned in one entry of the ledger, as bytes_of says") {
  BACKEND_OR_SKIP(backend);
  TestParameters model = decoder_of({2, 3});
  const ParameterBytes bytes = bytes_of(model.parameters(), DType::bf16);
  const std::size_t before = backend->ledger().total(MemoryKind::device);
  model.bind(*backend, DType::bf16);
  CHECK(backend->ledger().total(MemoryKind::device) - before == bytes.allocated);
  std::uint64_t used = 0;
  const std::byte* end = nullptr;
  for (const layers::Parameter* parameter : model.parameters()) {
    used += parameter->view.bytes();
    CHECK(parameter->view.aligned(256));
    CHECK(parameter->view.as<std::byte>() >= end);
    end = parameter->view.as<std::byte>() + parameter->view.bytes();
  }
  CHECK(used == bytes.used);
  CHECK(bytes.allocated >= bytes.used);
  CHECK(bytes.allocated < bytes.used + 256 * model.parameters().size());
}

TEST_CASE("what loading needed is given back") {
  BACKEND_OR_SKIP(backend);
  TestFiles files;
  add_decoder_tensors(files, Encoding::q8_0, false);
  const Checkpoint checkpoint = files.write();
  TestParameters model = decoder_of({});
  model.bind(*backend, DType::bf16);
  const std::string before = backend->ledger().report();
  load_parameters(model.parameters(), checkpoint, *backend, {.staged = true});
  model.checksums();
  CHECK(backend->ledger().report() == before);
}

}  // namespace
}  // namespace nvllm::model
