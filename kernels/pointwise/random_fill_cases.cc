// Random values: the same bits everywhere, and random enough; on whichever backend is linked.
#include <algorithm>

#include "kernels/common/host_device.h"
#include "kernels/pointwise/random_fill.h"
#include "kernels/pointwise/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;
using testing::same_bits;

template <typename T>
std::vector<T> filled(Backend& backend, std::int64_t rows, std::int64_t columns, RandomFill call,
                      std::int64_t shift = 0) {
  const auto stream = backend.create_stream();
  Placed<T> out(backend, *stream, std::vector<T>(rows * columns), shift);
  call.out = out.view({rows, columns});
  random_fill(call, *stream);
  return out.fetch();
}

template <typename T>
std::vector<T> reference(std::int64_t rows, std::int64_t columns, RandomFill call) {
  std::vector<T> out(rows * columns);
  call.out = TensorView(out.data(), dtype_of<T>, {rows, columns});
  random_fill_reference(call);
  return out;
}

TEST_CASE_TEMPLATE("random_fill gives the bits of its definition, for all shapes", T, float, Bf16,
                   F16) {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][2] = {{0, 5},    {5, 0},    {1, 1},     {3, 7},  {1, 8},
                                         {70, 513}, {300, 64}, {2, 9'001}, {65, 9}, {9, 8192}};
  for (const auto& shape : kShapes) {
    for (const std::int64_t shift : {0, 1}) {
      const std::int64_t rows = shape[0], columns = shape[1];
      CAPTURE(rows);
      CAPTURE(columns);
      CAPTURE(shift);
      const RandomFill call{.out = {},
                            .seed = 7,
                            .first_row = 3,
                            .first_column = 2,
                            .whole_columns = columns + 5,
                            .center = 0.125f,
                            .width = 0.3f};
      CHECK(same_bits(filled<T>(*backend, rows, columns, call, shift),
                      reference<T>(rows, columns, call)));
    }
  }
}

TEST_CASE("a part of a tensor has the values of the whole one") {
  BACKEND_OR_SKIP(backend);
  const auto whole = filled<float>(*backend, 30, 100, {.out = {}, .seed = 5, .whole_columns = 100});
  const auto part = filled<float>(
      *backend, 7, 31,
      {.out = {}, .seed = 5, .first_row = 11, .first_column = 60, .whole_columns = 100});
  int wrong = 0;
  for (int row = 0; row < 7; ++row) {
    for (int i = 0; i < 31; ++i) wrong += part[row * 31 + i] != whole[(11 + row) * 100 + 60 + i];
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("indices may pass 2^32, also in the middle of a row", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t first : {(1ll << 32) - 500, (1ll << 32) - 501, (5ll << 32) - 3}) {
    const RandomFill call{
        .out = {}, .seed = 1, .first_column = first, .whole_columns = first + 5000};
    CHECK(same_bits(filled<T>(*backend, 1, 1000, call), reference<T>(1, 1000, call)));
  }
  const RandomFill rows{.out = {}, .seed = 1, .first_row = (1 << 16) - 2, .whole_columns = 1 << 16};
  CHECK(same_bits(filled<T>(*backend, 4, 1000, rows), reference<T>(4, 1000, rows)));
  const auto low = filled<T>(*backend, 1, 64, {.out = {}, .seed = 1, .whole_columns = 64});
  CHECK_FALSE(same_bits(
      low,
      filled<T>(
          *backend, 1, 64,
          {.out = {}, .seed = 1, .first_column = 1ll << 32, .whole_columns = (1ll << 32) + 64})));
}

TEST_CASE("values lie in [center - width, center + width), evenly, and unlike their neighbours") {
  BACKEND_OR_SKIP(backend);
  constexpr int kCount = 1 << 20;
  for (const std::uint64_t seed : {0ull, 1ull, 0xffffffffffffffffull}) {
    CAPTURE(seed);
    const auto values =
        filled<float>(*backend, 1024, 1024, {.out = {}, .seed = seed, .whole_columns = 1024});
    double sum = 0, squares = 0, beside = 0, below = 0;
    std::vector<int> bins(256);
    int outside = 0;
    for (int i = 0; i < kCount; ++i) {
      const double u = values[i];
      outside += !(u >= -1 && u < 1);
      sum += u, squares += u * u;
      if (i >= 1) beside += u * values[i - 1];
      if (i >= 1024) below += u * values[i - 1024];
      ++bins[std::clamp(static_cast<int>((u + 1) * 128), 0, 255)];
    }
    CHECK(outside == 0);
    // Five standard deviations of what independent values would give.
    const double root = std::sqrt(kCount);
    CHECK(std::fabs(sum) < 5 * 0.577 * root);
    CHECK(std::fabs(squares - kCount / 3.0) < 5 * 0.298 * root);
    CHECK(std::fabs(beside) < 5 * 0.333 * root);
    CHECK(std::fabs(below) < 5 * 0.333 * root);
    double chi = 0;
    for (const int bin : bins) chi += (bin - 4096.0) * (bin - 4096.0) / 4096;
    CHECK(std::fabs(chi - 255) < 5 * 22.6);
  }
}

TEST_CASE("seeds give unrelated values") {
  BACKEND_OR_SKIP(backend);
  constexpr int kCount = 1 << 16;
  const auto values_of = [&](std::uint64_t seed) {
    return filled<float>(*backend, 1, kCount, {.out = {}, .seed = seed, .whole_columns = kCount});
  };
  const auto a = values_of(1);
  for (const std::uint64_t seed : {2ull, 3ull, (1ull << 32) + 1, 1ull << 63}) {
    const auto b = values_of(seed);
    double dot = 0;
    for (int i = 0; i < kCount; ++i) dot += a[i] * b[i];
    CHECK(std::fabs(dot) < 5 * 0.333 * 256);
    // Nor the same values in another order.
    std::vector<float> sorted_a = a, sorted_b = b;
    std::sort(sorted_a.begin(), sorted_a.end());
    std::sort(sorted_b.begin(), sorted_b.end());
    CHECK(sorted_a != sorted_b);
  }
}

TEST_CASE("a width of 0 gives the center") {
  BACKEND_OR_SKIP(backend);
  const auto ones =
      filled<Bf16>(*backend, 3, 33, {.out = {}, .whole_columns = 33, .center = 1, .width = 0});
  CHECK(same_bits(ones, std::vector<Bf16>(99, from_float<Bf16>(1))));
}

TEST_CASE("tensors of more than 2^31 elements are filled to the end") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cpu) SKIP_TEST("takes 4 GiB, which GPUs have");
  constexpr std::int64_t kCount = (1ll << 31) + 1001, kTail = 3000;
  for (const std::int64_t rows : {1, 11}) {
    const std::int64_t columns = kCount / rows;
    Buffer memory = backend->allocate(MemoryKind::device, rows * columns * sizeof(Bf16), "test");
    Buffer tail = backend->allocate(MemoryKind::pinned, kTail * sizeof(Bf16), "test");
    RandomFill call{
        .out = {memory.data(), DType::bf16, {rows, columns}}, .seed = 3, .whole_columns = columns};
    const auto stream = backend->create_stream();
    random_fill(call, *stream);
    backend->copy(tail.data(), call.out.as<Bf16>() + rows * columns - kTail, tail.bytes(), *stream);
    stream->synchronize();
    const auto* values = static_cast<const Bf16*>(tail.data());
    call.first_row = rows - 1;
    call.first_column = columns - kTail;
    CHECK(same_bits({values, values + kTail}, reference<Bf16>(1, kTail, call)));
  }
}

TEST_CASE("random_bytes gives the bits of its definition, and none of an fp8 NaN") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const RandomFill call{.out = {},
                        .seed = 3,
                        .first_row = 2,
                        .first_column = (1ll << 31) - 9,
                        .whole_columns = 1ll << 31};
  Placed<std::int32_t> out(*backend, *stream, std::vector<std::int32_t>(50 * 9), 0);
  RandomFill there = call;
  there.out = out.view({50, 9});
  random_bytes(there, *stream);
  const std::vector<std::int32_t> words = out.fetch();
  int wrong = 0;
  for (std::int64_t row = 0; row < 50; ++row) {
    for (std::int64_t i = 0; i < 9; ++i) {
      const auto index =
          static_cast<std::uint64_t>((2 + row) * call.whole_columns + call.first_column + i);
      const std::uint32_t bits =
          RandomKeys(3, index >> 32).bits(static_cast<std::uint32_t>(index)) & 0xfefefefe;
      wrong += words[row * 9 + i] != static_cast<std::int32_t>(bits);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("random_fill runs in graphs") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  Placed<float> out(*backend, *stream, std::vector<float>(100));
  const RandomFill call{.out = out.view({10, 10}), .seed = 4, .whole_columns = 10};
  const auto graph = backend->capture(*stream, [&] { random_fill(call, *stream); });
  CHECK(same_bits(out.fetch(), std::vector<float>(100)));
  graph->launch(*stream);
  CHECK(same_bits(out.fetch(), reference<float>(10, 10, call)));
}

TEST_CASE("random_fill refuses arguments that do not fit, by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 16, "test");
  const RandomFill good{.out = {memory.data(), DType::bf16, {4, 8}}, .whole_columns = 8};
  const auto why = [&](const auto& spoil) {
    RandomFill bad = good;
    spoil(bad);
    return refusal(*backend, [&](Stream& stream) { random_fill(bad, stream); });
  };
  CHECK(why([](RandomFill&) {}) == "");
  CHECK(why([&](RandomFill& bad) { bad.out.dtype = DType::u8; }) ==
        "random_fill: out is uint8 [4, 8]; it must be float32, bfloat16 or float16");
  CHECK(why([&](RandomFill& bad) {
          bad.out = {memory.data(), DType::f32, {32}};
        }) == "random_fill: out is float32 [32]; it must be [rows, columns]");
  CHECK(why([](RandomFill& bad) { bad.out.stride[0] = 9; }).find("random_fill: out is ") == 0);
  CHECK(why([](RandomFill& bad) {
          bad.out.data = bad.out.as<char>() + 1;
        }).find("random_fill: out lies at ") == 0);
  CHECK(why([](RandomFill& bad) { bad.first_column = 1; }) ==
        "random_fill: columns 1 to 9 are not all among the whole tensor's 8 columns");
  CHECK(why([](RandomFill& bad) { bad.first_column = -1; }) ==
        "random_fill: columns -1 to 7 are not all among the whole tensor's 8 columns");
  CHECK(why([](RandomFill& bad) { bad.first_row = -1; }) ==
        "random_fill: first_row is -1; it must be at least 0");
}

}  // namespace
}  // namespace nvllm::kernels
