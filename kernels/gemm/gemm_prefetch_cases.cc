// GEMMs that fetch keys and values which attention reads soon: their results are those that they
// have without.
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/gemm/testing/gemm_case.h"

namespace nvllm::kernels::testing {
namespace {

constexpr std::int64_t kBlockSize = 16, kBlocksEach = 30, kKvHeads = 2, kHeadDim = 64;

// A cache of which every byte has a value, and sequences of any length, also none.
class SomeCache {
 public:
  SomeCache(Fixture& fixture, std::int64_t sequences, std::mt19937& random)
      : cache_(fixture.backend.allocate(MemoryKind::device, 2 * bytes_of(sequences), "test")),
        table_(fixture.backend.allocate(MemoryKind::device,
                                        static_cast<std::size_t>(sequences * (kBlocksEach + 1)) * 4,
                                        "test")),
        here_(fixture.backend.allocate(MemoryKind::pinned, cache_.bytes(), "test")) {
    const std::int64_t blocks = sequences * kBlocksEach;
    std::memset(here_.data(), 0x5a, here_.bytes());
    fixture.backend.copy(cache_.data(), here_.data(), here_.bytes(), *fixture.stream);
    const Buffer numbers = fixture.backend.allocate(MemoryKind::pinned, table_.bytes(), "test");
    auto* const number = static_cast<std::int32_t*>(numbers.data());
    for (std::int64_t i = 0; i < blocks; ++i) number[i] = static_cast<std::int32_t>(i);
    std::shuffle(number, number + blocks, random);
    for (std::int64_t s = 0; s < sequences; ++s) {
      number[blocks + s] = static_cast<std::int32_t>(random() % (kBlocksEach * kBlockSize + 1));
      // Table entries past a sequence's blocks are invalid.
      for (std::int64_t b = (number[blocks + s] + kBlockSize - 1) / kBlockSize; b < kBlocksEach;
           ++b)
        number[s * kBlocksEach + b] = 1 << 30;
    }
    fixture.backend.copy(table_.data(), numbers.data(), numbers.bytes(), *fixture.stream);
    fixture.stream->synchronize();
    auto* const values = static_cast<char*>(cache_.data()) + bytes_of(sequences);
    prefetch.kv.keys = view(cache_.data(), blocks), prefetch.kv.values = view(values, blocks);
    prefetch.kv.block_table = TensorView(table_.data(), DType::i32, {sequences, kBlocksEach});
    prefetch.kv_length =
        TensorView(static_cast<std::int32_t*>(table_.data()) + blocks, DType::i32, {sequences});
  }

  bool unchanged(Fixture& fixture) {
    std::memset(here_.data(), 0, here_.bytes());
    fixture.backend.copy(here_.data(), cache_.data(), here_.bytes(), *fixture.stream);
    fixture.stream->synchronize();
    const auto* const bytes = static_cast<const unsigned char*>(here_.data());
    return std::all_of(bytes, bytes + here_.bytes(), [](unsigned char b) { return b == 0x5a; });
  }

  KvPrefetch prefetch;

 private:
  static std::size_t bytes_of(std::int64_t sequences) {
    return static_cast<std::size_t>(sequences * kBlocksEach * kBlockSize * kKvHeads * kHeadDim) * 2;
  }
  static TensorView view(void* data, std::int64_t blocks) {
    return TensorView(data, DType::bf16, {blocks, kBlockSize, kKvHeads, kHeadDim});
  }

  Buffer cache_, table_, here_;
};

TEST_CASE("a GEMM that prefetches has the same result, and changes nothing of what it fetches") {
  BACKEND_OR_SKIP(backend);
  GPU_SHAPES_OR_SKIP();
  Fixture fixture(*backend);
  std::mt19937 random(140);
  // One block for an output and several, with one copying warp and two; with M = 1, and a larger M
  // than kernels that prefetch have.
  constexpr std::int64_t kShapes[][2] = {{192, 640}, {2048, 64}, {384, 2048}};
  for (const std::int64_t m : {1, 17, 32, 64, 100, 200}) {
    for (const auto& shape : kShapes) {
      const std::int64_t outputs = shape[0], inputs = shape[1];
      for (const bool gated : {false, true}) {
        CAPTURE(m);
        CAPTURE(outputs);
        CAPTURE(gated);
        SomeCache cache(fixture, m, random);
        GemmTensors tensors(*backend,
                            {.m = m, .outputs = outputs, .inputs = inputs, .type = DType::bf16},
                            random());
        tensors.upload(*fixture.stream);
        GemmArguments all = tensors.arguments();
        if (gated) {
          all.fusion.epilogue = Epilogue::gated_activation;
          all.operands.epilogue.gate_up = all.operands.out;
          all.operands.out = TensorView(tensors.residual.there.data, DType::bf16, {m, outputs / 2});
          all.operands.residual = {};
        }
        const auto run = [&](const KvPrefetch& prefetch) {
          all.operands.kv_prefetch = prefetch;
          fixture.run(all);
          (gated ? tensors.residual : tensors.out).fetch(*fixture.stream);
          const TensorView& out = gated ? tensors.residual.here : tensors.out.here;
          std::vector<float> values;
          for (std::int64_t r = 0; r < m; ++r) {
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
        CHECK(cache.unchanged(fixture));
      }
    }
  }
}

TEST_CASE("a GEMM names what does not fit of what it is to fetch") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  std::mt19937 random(141);
  SomeCache cache(fixture, 4, random);
  GemmTensors tensors(*backend, {.m = 4, .outputs = 64, .inputs = 64, .type = DType::bf16}, 142);
  GemmArguments all = tensors.arguments();
  tensors.upload(*fixture.stream);
  all.operands.kv_prefetch = cache.prefetch;
  CHECK(fixture.refusal(all) == "");
  fixture.stream->synchronize();
  all.operands.kv_prefetch.kv_length = {};
  CHECK(fixture.refusal(all).find("gemm: kv_length") == 0);
}

}  // namespace
}  // namespace nvllm::kernels::testing
