// Products that fetch keys and values which attention reads soon: they are the products that they would be without.
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/gemm/testing/linear_case.h"

namespace nvllm::kernels::testing {
namespace {

constexpr std::int64_t kBlockSize = 16, kBlocksEach = 30, kKvHeads = 2, kHeadDim = 64;

// A cache of which every byte has a value, and sequences of any length, also none.
class SomeCache {
 public:
  SomeCache(Bench& bench, std::int64_t sequences, std::mt19937& random)
      : cache_(bench.backend.allocate(MemoryKind::device, 2 * bytes_of(sequences), "test")),
        table_(bench.backend.allocate(MemoryKind::device,
                                      static_cast<std::size_t>(sequences * (kBlocksEach + 1)) * 4,
                                      "test")),
        here_(bench.backend.allocate(MemoryKind::pinned, cache_.bytes(), "test")) {
    const std::int64_t blocks = sequences * kBlocksEach;
    std::memset(here_.data(), 0x5a, here_.bytes());
    bench.backend.copy(cache_.data(), here_.data(), here_.bytes(), *bench.stream);
    const Buffer numbers = bench.backend.allocate(MemoryKind::pinned, table_.bytes(), "test");
    auto* const number = static_cast<std::int32_t*>(numbers.data());
    for (std::int64_t i = 0; i < blocks; ++i) number[i] = static_cast<std::int32_t>(i);
    std::shuffle(number, number + blocks, random);
    for (std::int64_t s = 0; s < sequences; ++s) {
      number[blocks + s] = static_cast<std::int32_t>(random() % (kBlocksEach * kBlockSize + 1));
      // What lies behind a sequence's blocks is no block.
      for (std::int64_t b = (number[blocks + s] + kBlockSize - 1) / kBlockSize; b < kBlocksEach;
           ++b)
        number[s * kBlocksEach + b] = 1 << 30;
    }
    bench.backend.copy(table_.data(), numbers.data(), numbers.bytes(), *bench.stream);
    bench.stream->synchronize();
    auto* const values = static_cast<char*>(cache_.data()) + bytes_of(sequences);
    ahead.kv.keys = view(cache_.data(), blocks), ahead.kv.values = view(values, blocks);
    ahead.kv.block_table = TensorView(table_.data(), DType::i32, {sequences, kBlocksEach});
    ahead.kv_length =
        TensorView(static_cast<std::int32_t*>(table_.data()) + blocks, DType::i32, {sequences});
  }

  bool unchanged(Bench& bench) {
    std::memset(here_.data(), 0, here_.bytes());
    bench.backend.copy(here_.data(), cache_.data(), here_.bytes(), *bench.stream);
    bench.stream->synchronize();
    const auto* const bytes = static_cast<const unsigned char*>(here_.data());
    return std::all_of(bytes, bytes + here_.bytes(), [](unsigned char b) { return b == 0x5a; });
  }

  KvPrefetch ahead;

 private:
  static std::size_t bytes_of(std::int64_t sequences) {
    return static_cast<std::size_t>(sequences * kBlocksEach * kBlockSize * kKvHeads * kHeadDim) * 2;
  }
  static TensorView view(void* data, std::int64_t blocks) {
    return TensorView(data, DType::bf16, {blocks, kBlockSize, kKvHeads, kHeadDim});
  }

  Buffer cache_, table_, here_;
};

TEST_CASE(
    "a product that fetches ahead is the same product, and changes nothing of what it fetches") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Bench bench(*backend);
  std::mt19937 random(140);
  // One block for an output and several, with one copying warp and two; of one row, and of more than kernels that fetch
  // have.
  constexpr std::int64_t kShapes[][2] = {{192, 640}, {2048, 64}, {384, 2048}};
  for (const std::int64_t rows : {1, 17, 32, 64, 100, 200}) {
    for (const auto& shape : kShapes) {
      const std::int64_t outputs = shape[0], inputs = shape[1];
      for (const bool gated : {false, true}) {
        CAPTURE(rows);
        CAPTURE(outputs);
        CAPTURE(gated);
        SomeCache cache(bench, rows, random);
        Product product(*backend,
                        {.rows = rows, .outputs = outputs, .inputs = inputs, .type = DType::bf16},
                        random());
        product.upload(*bench.stream);
        Linear args = product.args();
        if (gated) {
          args.after = Linear::After::gated_activation;
          args.product = args.out;
          args.out = TensorView(product.residual.there.data, DType::bf16, {rows, outputs / 2});
          args.residual = {};
        }
        const auto run = [&](const KvPrefetch& ahead) {
          args.ahead = ahead;
          bench.matmul->linear(args, *bench.stream);
          (gated ? product.residual : product.out).fetch(*bench.stream);
          const TensorView& out = gated ? product.residual.here : product.out.here;
          std::vector<float> values;
          for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t o = 0; o < (gated ? outputs / 2 : outputs); ++o) {
              const std::int64_t at = r * (gated ? outputs / 2 : out.stride[0]) + o;
              values.push_back(to_float(out.as<Bf16>()[at]));
            }
          }
          return values;
        };
        const std::vector<float> alone = run({});
        for (cache.prefetch.share = 0; cache.prefetch.share < 2; ++cache.prefetch.share) {
          CHECK(run(cache.prefetch) == alone);
        }
        CHECK(cache.unchanged(bench));
      }
    }
  }
}

TEST_CASE("a product names what does not fit of what it is to fetch") {
  BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  std::mt19937 random(141);
  SomeCache cache(bench, 4, random);
  Product product(*backend, {.rows = 4, .outputs = 64, .inputs = 64, .type = DType::bf16}, 142);
  Linear args = product.args();
  product.upload(*bench.stream);
  args.ahead = cache.prefetch;
  CHECK(bench.refusal(args) == "");
  bench.stream->synchronize();
  args.ahead.kv_length = {};
  CHECK(bench.refusal(args).find("linear: kv_length") == 0);
}

}  // namespace
}  // namespace nvllm::kernels::testing
