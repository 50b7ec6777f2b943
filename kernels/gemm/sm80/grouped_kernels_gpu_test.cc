// The kernels of grouped GEMMs for few rows and in tiles give the same bits, whichever a GPU has
// them computed by.
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/common/cuda_arch.h"
#include "kernels/gemm/cuda/grouped_gemm.h"
#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

struct Shape {
  std::vector<std::int32_t> start;
  std::int64_t outputs, inputs;
  DType type;
  bool gathers, activates;
};

Shape random_shape(std::mt19937& random) {
  Shape shape{.start = {0},
              .outputs = static_cast<std::int64_t>(16 * (1 + random() % 24)),
              .inputs = static_cast<std::int64_t>(8 * (1 + random() % 60)),
              .type = random() % 2 == 0 ? DType::bf16 : DType::f16,
              .gathers = random() % 2 == 0,
              .activates = random() % 2 == 0};
  const unsigned groups = 1 + random() % 40, max_rows = 1 + random() % 90;
  for (unsigned group = 0; group < groups; ++group) {
    const unsigned rows = random() % 3 == 0 ? 0 : random() % max_rows;
    shape.start.push_back(shape.start.back() + static_cast<std::int32_t>(rows));
  }
  return shape;
}

bool same_bits(Backend& backend, const Shape& shape, std::mt19937& random) {
  const auto stream = backend.create_stream();
  const std::int64_t groups = std::ssize(shape.start) - 1, m = shape.start.back();
  const std::int64_t columns = shape.activates ? shape.outputs / 2 : shape.outputs;
  Matrix weight(backend, shape.type, groups * shape.outputs, shape.inputs);
  Matrix x(backend, shape.type, m + 3, shape.inputs);
  Matrix few(backend, shape.type, m, columns), tiles(backend, shape.type, m, columns);
  weight.fill(random, 0, 0.3f);
  x.fill(random, 0, 1);
  few.fill(random, std::nanf(""), 0);
  tiles.fill(random, std::nanf(""), 0);
  for (Matrix* matrix : {&weight, &x, &few, &tiles}) matrix->upload(*stream);
  std::vector<std::int32_t> source;
  for (std::int64_t row = 0; row < m; ++row) {
    source.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(m + 3)));
  }
  const Placed<std::int32_t> start(backend, *stream, shape.start);
  const Placed<std::int32_t> source_rows(backend, *stream, source);
  GroupedGemm grouped{.weight = {.values = weight.there},
                      .start = start.view({groups + 1}),
                      .out = few.there,
                      .x = shape.gathers ? x.there : x.there.rows(0, m)};
  if (shape.gathers) grouped.source_rows = source_rows.view({m});
  if (shape.activates) grouped.epilogue = Epilogue::gated_activation;
  cuda::grouped_gemv(grouped, *stream);
  grouped.out = tiles.there;
  cuda::grouped_tiles(grouped, *stream);
  few.fetch(*stream);
  tiles.fetch(*stream);
  CHECK(few.touched() + tiles.touched() == 0);
  for (std::int64_t row = 0; row < m; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      if (!std::isfinite(get(few.here, row, column))) return false;
    }
  }
  return bytes_of_rows(few.here) == bytes_of_rows(tiles.here);
}

TEST_CASE("grouped GEMMs for few rows and in tiles give the same bits") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(17);
  for (int i = 0; i < 40; ++i) {
    const Shape shape = random_shape(random);
    CAPTURE(i);
    CAPTURE(shape.start.back());
    CHECK(same_bits(*backend, shape, random));
  }
}

// Groups of few rows, whose results each time they are computed begin as NaN.
class FewRowsCase {
 public:
  static constexpr std::int64_t kGroups = 40, kOutputs = 96, kInputs = 520;

  FewRowsCase(Backend& backend, const std::vector<std::int32_t>& sizes)
      : backend_(backend),
        stream_(backend.create_stream()),
        sizes_(sizes),
        weight_(backend, DType::bf16, kGroups * kOutputs, kInputs),
        x_(backend, DType::bf16, rows(), kInputs),
        out_(backend, DType::bf16, rows(), kOutputs) {
    std::mt19937 random(20);
    weight_.fill(random, 0, 0.3f);
    x_.fill(random, 0, 1);
    for (Matrix* matrix : {&weight_, &x_}) matrix->upload(*stream_);
  }

  std::int64_t rows() const { return std::accumulate(sizes_.begin(), sizes_.end(), 0); }

  // Results of the groups [first, end) alone.
  std::vector<char> results(std::int64_t first, std::int64_t end, bool start_is_visible) {
    std::mt19937 random(21);
    out_.fill(random, std::nanf(""), 0);
    out_.upload(*stream_);
    std::vector<std::int32_t> starts = {0};
    std::int32_t before = 0, own = 0;
    for (std::int64_t group = 0; group < kGroups; ++group) {
      const std::int32_t size = sizes_[static_cast<std::size_t>(group)];
      if (group < first) before += size;
      const bool is_own = group >= first && group < end;
      own += is_own ? size : 0;
      starts.push_back(starts.back() + (is_own ? size : 0));
    }
    const Placed<std::int32_t> start(backend_, *stream_, starts);
    stream_->synchronize();
    cuda::grouped_small_m({.weight = {.values = weight_.there},
                           .start = start.view({kGroups + 1}),
                           .out = out_.there.rows(before, own),
                           .x = x_.there.rows(before, own)},
                          start_is_visible, *stream_);
    out_.fetch(*stream_);
    if (own > 0) CHECK(std::isfinite(get(out_.here, before + own - 1, kOutputs - 1)));
    return bytes_of_rows(out_.here.rows(before, own));
  }

 private:
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::int32_t> sizes_;
  Matrix weight_, x_, out_;
};

TEST_CASE("rows of few in a group have the same bits in any company") {
  BACKEND_OR_SKIP(backend);
  if (!cuda::runs_sm90a()) SKIP_TEST("the kernel is Hopper's");
  std::mt19937 random(22);
  std::vector<std::int32_t> sizes(FewRowsCase::kGroups);
  for (std::int32_t& size : sizes) size = static_cast<std::int32_t>(random() % 12);
  FewRowsCase few(*backend, sizes);
  const std::vector<char> whole = few.results(0, FewRowsCase::kGroups, false);
  CHECK(few.results(0, FewRowsCase::kGroups, true) == whole);
  std::vector<char> parts;
  for (std::int64_t group = 0; group < FewRowsCase::kGroups; ++group) {
    const std::vector<char> part = few.results(group, group + 1, false);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  CHECK(parts == whole);
}

// Experts in fp8, and rows of theirs.
struct Fp8Case {
  static constexpr std::int64_t kGroups = 5, kOutputs = 256, kInputs = 384, kRows = 300;

  std::unique_ptr<Stream> stream;
  std::mt19937 random{18};
  Matrix x;
  PackedWeight weight;
  Placed<std::int32_t> start;
  Buffer memory;

  explicit Fp8Case(Backend& backend)
      : stream(backend.create_stream()),
        x(backend, DType::bf16, kRows, kInputs),
        weight(backend, setting(), random,
               Matrix(backend, DType::f32, kGroups * kOutputs, kInputs)),
        start(backend, *stream, {0, 3, 3, 140, 141, 300}),
        memory(backend.allocate(MemoryKind::device, kRows * (kInputs + 64), "test")) {
    x.fill(random, 0, 1);
    x.upload(*stream);
    weight.upload(*stream);
  }

  GroupedGemm grouped(const TensorView& out) const {
    return {.weight = weight.there(), .start = start.view({kGroups + 1}), .out = out, .x = x.there};
  }
  // Rows [first, first + count) of x, in fp8.
  cuda::Fp8Rows rows(std::int64_t first, std::int64_t count) const {
    auto* const values = static_cast<std::byte*>(memory.data());
    const cuda::Fp8Rows rows{values, reinterpret_cast<float*>(values + kRows * kInputs), count};
    cuda::quantize_rows(x.there.rows(first, count), rows, *stream, false);
    return rows;
  }

  static Setting setting() {
    Setting setting{.outputs = kGroups * kOutputs, .inputs = kInputs, .type = DType::bf16};
    setting.quantized = {
        .format = WeightFormat::fp8, .group = kFp8Group, .weight_only = false, .blocks = true};
    return setting;
  }
};

TEST_CASE("rows by fp8 experts have the same bits in parts as all at once") {
  BACKEND_OR_SKIP(backend);
  if (!cuda::runs_sm90a()) SKIP_TEST("the kernel is Hopper's");
  const Fp8Case fp8(*backend);
  Matrix out(*backend, DType::bf16, Fp8Case::kRows, Fp8Case::kOutputs);
  std::mt19937 random(19);
  const auto bytes = [&](const std::vector<std::int64_t>& parts) {
    out.fill(random, std::nanf(""), 0);
    out.upload(*fp8.stream);
    std::int64_t first = 0;
    for (const std::int64_t count : parts) {
      cuda::grouped_fp8(fp8.grouped(out.there), fp8.rows(first, count), first, count, {},
                        *fp8.stream);
      first += count;
    }
    out.fetch(*fp8.stream);
    CHECK(out.touched() == 0);
    return bytes_of_rows(out.here);
  };
  const std::vector<char> whole = bytes({Fp8Case::kRows});
  CHECK(std::isfinite(get(out.here, Fp8Case::kRows - 1, Fp8Case::kOutputs - 1)));
  CHECK(bytes({100, 41, 159}) == whole);
}

TEST_CASE("rows in fp8 that a gated activation leaves are those that quantize_rows() makes") {
  BACKEND_OR_SKIP(backend);
  if (!cuda::runs_sm90a()) SKIP_TEST("the kernel is Hopper's");
  const Fp8Case fp8(*backend);
  constexpr std::int64_t kRows = Fp8Case::kRows, kColumns = Fp8Case::kOutputs / 2;
  const Matrix activated(*backend, DType::bf16, kRows, kColumns);
  GroupedGemm grouped = fp8.grouped(activated.there);
  grouped.epilogue = Epilogue::gated_activation;
  const cuda::Fp8Rows x = fp8.rows(0, kRows);
  // A scale for each row follows the values.
  const auto quantized = [&](const auto& make) {
    const std::vector<std::int32_t> zeros(kRows * (kColumns / 4 + 1));
    Placed<std::int32_t> words(*backend, *fp8.stream, zeros);
    auto* const values = reinterpret_cast<std::byte*>(words.data());
    make(cuda::Fp8Rows{values, reinterpret_cast<float*>(values + kRows * kColumns), kRows});
    return words.fetch();
  };
  const auto right = quantized([&](const cuda::Fp8Rows& out) {
    cuda::grouped_fp8(grouped, x, 0, kRows, {}, *fp8.stream);
    cuda::quantize_rows(activated.there, out, *fp8.stream, false);
  });
  const auto got = quantized(
      [&](const cuda::Fp8Rows& out) { cuda::grouped_fp8(grouped, x, 0, kRows, out, *fp8.stream); });
  CHECK(got == right);
}

}  // namespace
}  // namespace nvllm::kernels::testing
