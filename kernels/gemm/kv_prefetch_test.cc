#include "kernels/gemm/kv_prefetch.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "base/error.h"

namespace nvllm::kernels {
namespace {

struct Shape {
  std::int64_t block_size, kv_heads, head_dim;
  DType type;
  bool paged;
};
constexpr Shape kShapes[] = {{16, 8, 128, DType::bf16, true},  {16, 1, 64, DType::f16, true},
                             {256, 4, 128, DType::bf16, true}, {48, 3, 80, DType::bf16, true},
                             {32, 8, 128, DType::f32, true},   {1600, 2, 128, DType::bf16, false},
                             {256, 1, 16, DType::bf16, true}};

// Addresses that belong to nobody else; nothing is there.
struct Release {
  std::size_t bytes = 0;
  void operator()(char* at) const { munmap(at, bytes); }
};
using Addresses = std::unique_ptr<char, Release>;
Addresses reserve(std::size_t bytes) {
  void* const at =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(at != MAP_FAILED);
  return {static_cast<char*>(at), Release{bytes}};
}

// A cache's addresses, and tables and lengths that are read.
struct Cache {
  std::vector<std::int32_t> table, lengths;
  KvPrefetch prefetch;
  std::int64_t block_bytes, token_bytes;

  Cache(const Shape& shape, const std::vector<std::int32_t>& of, std::mt19937& random)
      : lengths(of) {
    std::int32_t longest = 1;
    for (const std::int32_t length : lengths) longest = std::max(longest, length);
    const auto sequences = static_cast<std::int64_t>(lengths.size());
    const std::int64_t width = (longest + shape.block_size - 1) / shape.block_size;
    const std::int64_t blocks = shape.paged ? sequences * width : sequences;
    token_bytes = shape.kv_heads * shape.head_dim * static_cast<std::int64_t>(size_of(shape.type));
    block_bytes = token_bytes * shape.block_size;
    const auto cache = [&](Addresses& addresses) {
      addresses = reserve(static_cast<std::size_t>(blocks * block_bytes));
      return TensorView(addresses.get(), shape.type,
                        {blocks, shape.block_size, shape.kv_heads, shape.head_dim});
    };
    prefetch.kv.keys = cache(keys_), prefetch.kv.values = cache(values_);
    prefetch.kv_length = TensorView(lengths.data(), DType::i32, {sequences});
    if (shape.paged) {
      for (std::int64_t i = 0; i < blocks; ++i) table.push_back(static_cast<std::int32_t>(i));
      std::ranges::shuffle(table, random);
      prefetch.kv.block_table = TensorView(table.data(), DType::i32, {sequences, width});
    }
  }

  // Maps the address of each token's keys or values to the sequence and the token.
  std::map<const char*, std::pair<int, int>> tokens(const TensorView& cache,
                                                    const Shape& shape) const {
    std::map<const char*, std::pair<int, int>> all;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      for (int t = 0; t < lengths[s]; ++t) {
        std::int64_t block = static_cast<std::int64_t>(s);
        if (shape.paged) {
          const std::int64_t width = prefetch.kv.block_table.shape[1];
          block = table[s * static_cast<std::size_t>(width) +
                        static_cast<std::size_t>(t / shape.block_size)];
        }
        all[cache.as<char>() + block * block_bytes + t % shape.block_size * token_bytes] = {
            static_cast<int>(s), t};
      }
    }
    return all;
  }

  bool has_key(const char* at) const {
    const char* const first = prefetch.kv.keys.as<char>();
    return at >= first && at < first + prefetch.kv.blocks() * block_bytes;
  }

 private:
  Addresses keys_, values_;
};

TEST_CASE("prefetched pieces are tokens of their sequences, each fetched once in all shares") {
  std::mt19937 random(7);
  for (const Shape& shape : kShapes) {
    for (const int sequences : {1, 3, 24, 64}) {
      CAPTURE(shape.block_size);
      CAPTURE(sequences);
      std::vector<std::int32_t> lengths;
      for (int s = 0; s < sequences; ++s) {
        const int kind = static_cast<int>(random() % 4);
        lengths.push_back(kind == 0   ? static_cast<int>(random() % 3)
                          : kind == 1 ? KvPieces::kFirstToken + static_cast<int>(random() % 40)
                                      : 200 + static_cast<int>(random() % 1400));
      }
      Cache cache(shape, lengths, random);
      const auto keys = cache.tokens(cache.prefetch.kv.keys, shape);
      const auto values = cache.tokens(cache.prefetch.kv.values, shape);
      std::set<const char*> fetched;
      std::int64_t of_keys = 0;
      for (cache.prefetch.share = 0; cache.prefetch.share < 2; ++cache.prefetch.share) {
        const KvPieces pieces(cache.prefetch);
        std::int64_t bytes = 0;
        for (int i = 0; i < pieces.pieces(); ++i) {
          const char* const piece = pieces.piece(i);
          if (piece == nullptr) continue;
          bytes += pieces.piece_bytes();
          REQUIRE(pieces.piece_bytes() <= KvPieces::kMaxPieceBytes);
          const bool key = cache.has_key(piece);
          const auto& tokens = key ? keys : values;
          of_keys += key ? 1 : -1;
          for (int t = 0; t < pieces.tokens; ++t) {
            const char* const token = piece + t * cache.token_bytes;
            REQUIRE(tokens.contains(token));
            CHECK(tokens.at(token).second >= KvPieces::kFirstToken);
            CHECK(fetched.insert(token).second);
          }
        }
        CHECK(bytes <= KvPieces::kMaxBytes);
      }
      CHECK(of_keys == 0);  // as much of keys as of values
    }
  }
}

TEST_CASE(
    "sequences of one length are fetched from places that differ, and as much as there is room "
    "for") {
  std::mt19937 random(8);
  for (const int sequences : {24, 64, 128}) {
    CAPTURE(sequences);
    Cache cache(kShapes[0], std::vector<std::int32_t>(static_cast<std::size_t>(sequences), 1150),
                random);
    const auto keys = cache.tokens(cache.prefetch.kv.keys, kShapes[0]);
    const KvPieces pieces(cache.prefetch);
    std::map<int, int> at_once;  // sequences of which a token is fetched
    int found = 0;
    for (int i = 0; i < pieces.pieces(); ++i) {
      const char* const piece = pieces.piece(i);
      if (piece == nullptr || !cache.has_key(piece)) continue;
      for (int t = 0; t < pieces.tokens; ++t, ++found) {
        ++at_once[keys.at(piece + t * cache.token_bytes).second];
      }
    }
    // No token is fetched in more than three times as many sequences as if all were spread evenly.
    const int even = (found + 1149 - KvPieces::kFirstToken) / (1150 - KvPieces::kFirstToken);
    for (const auto& [token, count] : at_once) CHECK(count <= 3 * even);
    CHECK(found * cache.token_bytes * 2 > KvPieces::kMaxBytes * 8 / 10);
  }
}

TEST_CASE("nothing is fetched of what is not known, or does not lie in lines") {
  std::mt19937 random(9);
  CHECK(KvPieces().pieces() == 0);
  CHECK(KvPieces(KvPrefetch{}).pieces() == 0);
  Cache cache(kShapes[0], {1000, 1000}, random);
  REQUIRE(KvPieces(cache.prefetch).pieces() > 0);
  KvPrefetch apart = cache.prefetch;  // a head's tokens are neighbours
  for (TensorView* tensor : {&apart.kv.keys, &apart.kv.values}) {
    tensor->stride[1] = 128, tensor->stride[2] = 16 * 128;
  }
  CHECK(KvPieces(apart).pieces() == 0);
  KvPrefetch unaligned = cache.prefetch;
  unaligned.kv.keys.data = static_cast<char*>(unaligned.kv.keys.data) + 2;
  CHECK(KvPieces(unaligned).pieces() == 0);
  KvPrefetch uneven = cache.prefetch;  // blocks begin anywhere
  for (TensorView* tensor : {&uneven.kv.keys, &uneven.kv.values}) ++tensor->stride[0];
  CHECK(KvPieces(uneven).pieces() == 0);
  KvPrefetch none = cache.prefetch;
  none.kv_length.shape[0] = 0;
  CHECK(KvPieces(none).pieces() == 0);
}

TEST_CASE("lengths that do not fit are refused by name") {
  std::mt19937 random(10);
  Cache cache(kShapes[0], {1000, 1000}, random);
  CHECK_NOTHROW(check_kv_prefetch(cache.prefetch, "test"));
  const auto refused = [&](const auto& change, const char* part) {
    KvPrefetch wrong = cache.prefetch;
    change(wrong);
    CHECK_THROWS_WITH_AS(check_kv_prefetch(wrong, "test"), doctest::Contains(part), Error);
  };
  refused([](KvPrefetch& a) { a.kv_length.data = nullptr; }, "kv_length");
  refused([](KvPrefetch& a) { a.kv_length.dtype = DType::i64; }, "int32");
  refused([](KvPrefetch& a) { a.kv_length.shape[0] = 3; }, "2 rows of block_table");
  refused([](KvPrefetch& a) { a.share = -1; }, "share is -1");
  refused([](KvPrefetch& a) { a.kv.values.shape[0] = 1; }, "values");
}

}  // namespace
}  // namespace nvllm::kernels
