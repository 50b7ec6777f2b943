// A row of attention on the CPU gets the same bits however its sequence's rows are cut into calls,
// whatever other sequences there are, wherever keys and values lie and however many threads there
// are: with each instruction set that this machine has.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "kernels/attention/testing/attention_case.h"
#include "testing/sanitizers.h"

namespace nvllm::kernels::testing {
namespace {

using cpu::InstructionSet;

constexpr std::int64_t kTokens = 1100;  // some segments, and a part of one
constexpr std::int64_t kKvHeads = 2, kGroup = 3;

// How a part of the sequence is computed.
struct Way {
  std::int64_t chunk = kTokens;  // rows of a call
  std::int64_t block_size = 16;  // 0: contiguous
  bool company = false;          // other sequences before and after
  int threads = 1;
  std::int64_t head_dim = 64;

  std::string describe() const {
    return str("chunks of ", chunk, ", blocks of ", block_size, company ? ", in company" : "", ", ",
               threads, " threads, heads of ", head_dim);
  }
};

// A sequence of which every token is a row.
template <typename T, typename Kv>
class Rows {
 public:
  using Case = AttentionCase<T, Kv>;

  Rows(Backend& backend, InstructionSet set, std::int64_t head_dim, std::int64_t window,
       unsigned seed)
      : backend_(backend),
        set_(set),
        seed_(seed),
        whole_(Case::random(whole_groups({{kTokens, kTokens}}, kKvHeads, kGroup, head_dim), seed)) {
    set_scales(whole_);
    whole_.window = window;
    whole_.run(backend, 1, set);
  }

  // The number of rows [begin, end), computed in one call, that differ from those of the whole.
  int count_differing(std::int64_t begin, std::int64_t end, const Way& way) const {
    Case part = part_of(begin, end, way);
    part.run(backend_, way.threads, set_);
    const std::int64_t elements = whole_.row_elements(), heads = whole_.shape.heads;
    const std::int64_t first = way.company ? kBefore.rows : 0;
    int differing = 0;
    for (std::int64_t row = 0; row < end - begin; ++row) {
      const bool same =
          std::memcmp(&part.out[(first + row) * elements], &whole_.out[(begin + row) * elements],
                      elements * sizeof(T)) == 0 &&
          std::memcmp(&part.lse[(first + row) * heads], &whole_.lse[(begin + row) * heads],
                      heads * sizeof(float)) == 0;
      differing += !same;
    }
    return differing;
  }

 private:
  static constexpr Sequence kBefore{1, 700}, kBehind{90, 400};

  static void set_scales(Case& of) {
    if constexpr (!std::is_same_v<T, Kv>) of.kv_scales = {0.7f, 1.3f, 0.9f, 0.6f};
  }

  Case part_of(std::int64_t begin, std::int64_t end, const Way& way) const {
    std::vector<Sequence> sequences{{end - begin, end}};
    if (way.company) sequences = {kBefore, sequences[0], kBehind};
    Case part = Case::random(
        whole_groups(sequences, kKvHeads, kGroup, whole_.shape.head_dim, way.block_size),
        seed_ + 1);
    set_scales(part);
    part.window = whole_.window;
    const std::int64_t elements = whole_.row_elements(), of_token = whole_.token_elements();
    const std::int64_t rows = way.company ? kBefore.rows : 0;
    const std::int64_t tokens = way.company ? kBefore.tokens : 0;
    std::copy_n(&whole_.q[begin * elements], (end - begin) * elements, &part.q[rows * elements]);
    std::copy_n(whole_.k.data(), end * of_token, &part.k[tokens * of_token]);
    std::copy_n(whole_.v.data(), end * of_token, &part.v[tokens * of_token]);
    return part;
  }

  Backend& backend_;
  const InstructionSet set_;
  const unsigned seed_;
  Case whole_;
};

// Some of the calls that compute the sequence in this way: "" or what differs.
template <typename T, typename Kv>
std::string differing_rows(const Rows<T, Kv>& rows, const Way& way, std::mt19937& random) {
  constexpr int kCalls = nvllm::testing::kSanitized ? 1 : 4;
  for (int call = 0; call < kCalls; ++call) {
    const auto chunks = (kTokens + way.chunk - 1) / way.chunk;
    const auto begin = static_cast<std::int64_t>(random() % chunks) * way.chunk;
    const std::int64_t end = std::min(kTokens, begin + way.chunk);
    const int differing = rows.count_differing(begin, end, way);
    if (differing > 0)
      return str(differing, " of rows ", begin, " to ", end - 1, " in ", way.describe());
  }
  return "";
}

template <typename T, typename Kv>
void check(std::int64_t window = 0) {
  const unsigned seed = fresh_seed();
  std::mt19937 random(seed);
  const auto backend = create_backend(DeviceKind::cpu);
  for (const InstructionSet set : {InstructionSet::avx2, InstructionSet::avx512}) {
    if (set > cpu::instruction_sets().back()) continue;
    if (nvllm::testing::kSanitized && set < cpu::instruction_sets().back()) continue;
    const std::string name = cpu::name_of(set);
    CAPTURE(name);
    for (const std::int64_t head_dim : {64, 80}) {
      const Rows<T, Kv> rows(*backend, set, head_dim, window, seed);
      for (const std::int64_t chunk : {1, 5, 16, 100, 512}) {
        for (const std::int64_t block_size : {0, 16, 256}) {
          const Way way{.chunk = chunk,
                        .block_size = block_size,
                        .company = block_size == 16,
                        .threads = block_size == 0 ? 3 : 1,
                        .head_dim = head_dim};
          CHECK(differing_rows(rows, way, random) == "");
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("a row has the same bits in prefill and decode", T, FLOAT_TYPES) {
  check<T, T>();
}

TEST_CASE("a row has the same bits in prefill and decode, with a cache of E4m3") {
  check<Bf16, E4m3>();
}

TEST_CASE("a row has the same bits in prefill and decode, with a window") {
  check<Bf16, Bf16>(300);
}

// With rows that fill a tile, the partial results of this many segments do not fit the plan at
// once.
TEST_CASE("rows have the same bits where segments are planned in several parts") {
  constexpr std::int64_t kMany = 34'000, kRowsOfTile = 21, kHeadDim = 256;
  const auto backend = create_backend(DeviceKind::cpu);
  using Case = AttentionCase<Bf16>;
  Case tiles = Case::random(whole_groups({{2 * kRowsOfTile, kMany}}, 1, kGroup, kHeadDim), 1);
  Case segments(whole_groups({{kRowsOfTile, kMany}}, 1, kGroup, kHeadDim));
  const auto elements = static_cast<std::ptrdiff_t>(segments.q.size());
  segments.q.assign(tiles.q.end() - elements, tiles.q.end());
  segments.k = tiles.k, segments.v = tiles.v;
  for (Case* each : {&tiles, &segments}) each->run(*backend, 2, cpu::instruction_sets().back());
  CHECK(std::memcmp(segments.out.data(), &*(tiles.out.end() - elements),
                    static_cast<std::size_t>(elements) * sizeof(Bf16)) == 0);
}

}  // namespace
}  // namespace nvllm::kernels::testing
