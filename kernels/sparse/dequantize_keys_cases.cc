// Tests dequantized keys against their definition, on whichever backend is linked: the bits are the
// same.
#include <numeric>

#include "device/e4m3.h"
#include "kernels/sparse/prompt_rows.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

struct Shape {
  std::int64_t tokens, kv_heads, head_dim, block_size;  // block_size 0: the sequence is one block
};

// Keys of a sequence in blocks from all over the cache; what belongs to no token is NaN.
struct Keys {
  Shape shape;
  std::int64_t block_size, blocks;
  std::vector<std::uint8_t> cache;
  std::vector<std::int32_t> table;
  std::vector<float> scales;

  explicit Keys(const Shape& s)
      : shape(s),
        block_size(s.block_size > 0 ? s.block_size : s.tokens + 3),
        blocks(s.block_size > 0 ? 2 * (s.tokens / s.block_size + 1) : 1),
        cache(static_cast<std::size_t>(blocks * block_size * s.kv_heads * s.head_dim), 0x7f) {
    std::mt19937 random(7);
    table.resize(static_cast<std::size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), random);
    if (s.block_size > 0) table.resize(table.size() / 2);
    for (std::int64_t token = 0; token < s.tokens; ++token) {
      for (std::int64_t i = 0; i < s.kv_heads * s.head_dim; ++i)
        cache[at(token) + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(random() % 127);
    }
    for (std::int64_t i = 0; i < 2 * s.kv_heads; ++i)
      scales.push_back(0.25f + 0.3f * static_cast<float>(i % 5));
  }

  std::size_t at(std::int64_t token) const {
    const std::int64_t block = table[static_cast<std::size_t>(token / block_size)];
    return static_cast<std::size_t>((block * block_size + token % block_size) * shape.kv_heads *
                                    shape.head_dim);
  }
  float key(std::int64_t token, std::int64_t i, bool scaled) const {
    const float scale = scales[static_cast<std::size_t>(i / shape.head_dim)];
    return to_float(E4m3{cache[at(token) + static_cast<std::size_t>(i)]}) * (scaled ? scale : 1.0f);
  }
};

TEST_CASE_TEMPLATE("keys of E4m3 become floats, in the order of tokens", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  for (const Shape& shape : {Shape{1, 1, 16, 16},
                             {100, 2, 64, 16},
                             {257, 3, 128, 48},
                             {70, 2, 80, 0},
                             {33, 1, 256, 64}}) {
    const Keys keys(shape);
    for (const bool scaled : {false, true}) {
      const Placed<std::uint8_t> cache(*backend, *stream, keys.cache);
      const Placed<std::int32_t> table(*backend, *stream, keys.table);
      const Placed<float> scales(*backend, *stream, keys.scales);
      const std::int64_t elements = shape.kv_heads * shape.head_dim, capacity = shape.tokens + 5;
      Placed<T> out(
          *backend, *stream,
          std::vector<T>(static_cast<std::size_t>(capacity * elements), from_float<T>(-7)));
      DequantizeKeys args;
      args.kv.keys = args.kv.values = TensorView(
          cache.data(), DType::u8, {keys.blocks, keys.block_size, shape.kv_heads, shape.head_dim});
      if (shape.block_size > 0)
        args.kv.block_table = table.view({1, static_cast<std::int64_t>(keys.table.size())});
      if (scaled) args.kv_scales = scales.view({2, shape.kv_heads});
      args.tokens = shape.tokens;
      args.out = out.view({capacity, shape.kv_heads, shape.head_dim});
      dequantize_keys(args, *stream);
      const std::vector<T> results = out.fetch();
      std::size_t wrong = 0;
      for (std::int64_t token = 0; token < capacity; ++token) {
        for (std::int64_t i = 0; i < elements; ++i) {
          const T expected = from_float<T>(token < shape.tokens ? keys.key(token, i, scaled) : -7);
          const T& got = results[static_cast<std::size_t>(token * elements + i)];
          wrong += std::memcmp(&got, &expected, sizeof(T)) != 0;
        }
      }
      CAPTURE(shape.tokens);
      CAPTURE(scaled);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("keys that are not E4m3, and more tokens than there are, are refused by name") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Keys keys({20, 1, 16, 16});
  const Placed<std::uint8_t> cache(*backend, *stream, keys.cache);
  const Placed<std::int32_t> table(*backend, *stream, keys.table);
  const Placed<float> out(*backend, *stream, std::vector<float>(100 * 16));
  stream->synchronize();  // nobody else waits for the copies
  DequantizeKeys args;
  args.kv.keys = args.kv.values =
      TensorView(cache.data(), DType::u8, {keys.blocks, keys.block_size, 1, 16});
  args.kv.block_table = table.view({1, 2});
  args.out = out.view({100, 1, 16});
  args.tokens = 33;
  CHECK_THROWS_WITH_AS(dequantize_keys(args, *stream),
                       "dequantize_keys: tokens is 33, out is float32 [100, 1, 16], and the cache "
                       "holds 32 tokens; there must be as many in both, and out at a multiple of "
                       "16 bytes",
                       Error);
  args.tokens = 20;
  args.kv.keys.dtype = args.kv.values.dtype = DType::bf16;
  CHECK_THROWS_WITH_AS(dequantize_keys(args, *stream),
                       doctest::Contains("dequantize_keys: keys are bfloat16 [4, 16, 1, 16]; they "
                                         "must be E4M3"),
                       Error);
}

}  // namespace
}  // namespace nvllm::kernels::testing
