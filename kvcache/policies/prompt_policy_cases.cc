// XAttention with memory for gathered keys: its segments, and the calls of a prompt, select the
// same as without. A cache of E4m3: XAttention and MInference attend as to its numbers in floats.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "device/e4m3.h"
#include "kernels/testing/cases.h"
#include "kvcache/policies/prompt_policy.h"
#include "testing/sanitizers.h"

namespace nvllm::kvcache {
namespace {

using kernels::testing::normal_values;
using kernels::testing::Placed;

// Heads of one KV head: a GPU's kernels take 16 at once.
constexpr std::int64_t kHeads = testing::kSanitized ? 4 : 16;
constexpr std::int64_t kHeadDim = 64, kTokens = 2500, kBlock = 16;
constexpr std::int64_t kBlocks = (kTokens + kBlock - 1) / kBlock;

// The limits of prompts of up to a million tokens, where segments are as short as they get.
PromptLimits limits(std::size_t key_bytes) {
  return {.rows = kTokens, .tokens = 1 << 20, .heads = kHeads, .key_bytes = key_bytes};
}

// Keys or values of a cache in E4m3, times their scale in floats.
constexpr float kScales[] = {2, 0.5f};
std::vector<E4m3> e4m3_values(unsigned seed) {
  return normal_values<E4m3>(kBlocks * kBlock * kHeadDim, seed);
}
template <typename T>
std::vector<T> scaled(const std::vector<E4m3>& values, float scale) {
  std::vector<T> floats;
  for (const E4m3 value : values) floats.push_back(from_float<T>(to_float(value) * scale));
  return floats;
}

// Queries, keys and values of a prompt with one KV head, in blocks from anywhere.
template <typename T, typename Kv = T>
class Prompt {
 public:
  Prompt(Backend& backend, Stream& stream)
      : Prompt(backend, stream, normal_values<Kv>(kBlocks * kBlock * kHeadDim, 2),
               normal_values<Kv>(kBlocks * kBlock * kHeadDim, 3), {}) {}
  Prompt(Backend& backend, Stream& stream, const std::vector<Kv>& keys,
         const std::vector<Kv>& values, const std::vector<float>& scales)
      : stream_(stream),
        queries_(backend, stream, normal_values<T>(kTokens * kHeads * kHeadDim, 1, 0, 3)),
        keys_(backend, stream, keys),
        values_(backend, stream, values),
        scales_(backend, stream, scales),
        has_scales_(!scales.empty()),
        table_(backend, stream, shuffled()),
        out_(backend, stream, std::vector<T>(kTokens * kHeads * kHeadDim)) {}

  // In calls of this many rows.
  std::vector<T> run_attention(PromptPolicy& policy, std::int64_t rows_of_call) {
    for (std::int64_t first = 0; first < kTokens; first += rows_of_call) {
      const std::int64_t count = std::min(rows_of_call, kTokens - first);
      PromptAttention args;
      args.later_rows = kTokens;  // so no row is one of the last
      args.rows.q = queries_.view({kTokens, kHeads, kHeadDim}).rows(first, count);
      args.rows.kv.keys = keys_.view({kBlocks, kBlock, 1, kHeadDim});
      args.rows.kv.values = values_.view({kBlocks, kBlock, 1, kHeadDim});
      if (has_scales_) args.kv_scales = scales_.view({2, 1});
      args.rows.kv.block_table = table_.view({1, kBlocks});
      args.rows.first_position = first;
      args.rows.group = kHeads;
      args.rows.scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
      args.out = out_.view({kTokens, kHeads, kHeadDim}).rows(first, count);
      policy.run_attention(args, stream_);
    }
    return out_.fetch();
  }

 private:
  static std::vector<std::int32_t> shuffled() {
    std::vector<std::int32_t> blocks(kBlocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(4));
    return blocks;
  }

  Stream& stream_;
  Placed<T> queries_;
  Placed<Kv> keys_, values_;
  Placed<float> scales_;
  const bool has_scales_;
  Placed<std::int32_t> table_;
  Placed<T> out_;
};

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](T left, T right) { return to_float(left) == to_float(right); });
}

TEST_CASE_TEMPLATE("room for keys changes nothing of what XAttention attends to", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  Prompt<T> prompt(*backend, *stream);
  const auto without = XAttention::create(*backend, limits(0), 0.6f);
  const auto with = XAttention::create(*backend, limits(kHeadDim * sizeof(T)), 0.6f);
  const auto everything = XAttention::create(*backend, limits(kHeadDim * sizeof(T)), 1);
  const std::vector<T> expected = prompt.run_attention(*without, kTokens);
  CHECK(same(prompt.run_attention(*with, kTokens), expected));
  CHECK(same(prompt.run_attention(*with, 1280), expected));  // of whole tiles
  CHECK(!same(prompt.run_attention(*everything, kTokens), expected));
}

// The root mean square of the difference, relative to that of b.
template <typename T>
double distance(const std::vector<T>& a, const std::vector<T>& b) {
  double difference = 0, sum = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(double{to_float(a[i])} - to_float(b[i]), 2);
    sum += std::pow(double{to_float(b[i])}, 2);
  }
  return std::sqrt(difference / sum);
}

TEST_CASE_TEMPLATE("prompts attend to a cache of E4m3 as to its numbers in floats", T, float,
                   Bf16) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const std::vector<E4m3> keys = e4m3_values(2), values = e4m3_values(3);
  Prompt<T, E4m3> quantized(*backend, *stream, keys, values, {kScales[0], kScales[1]});
  Prompt<T> floats(*backend, *stream, scaled<T>(keys, kScales[0]), scaled<T>(values, kScales[1]),
                   {});
  PromptLimits e4m3 = limits(kHeadDim * sizeof(T));
  e4m3.tokens = kTokens;
  PromptLimits plain = e4m3;
  e4m3.e4m3 = true;
  const double tolerance = sizeof(T) == 4 ? 1e-5 : 1e-2;
  struct Way {
    const char* name;
    std::unique_ptr<PromptPolicy> of_e4m3, of_floats, other;
  };
  Way ways[] = {{"xattention", XAttention::create(*backend, e4m3, 0.6f),
                 XAttention::create(*backend, plain, 0.6f), XAttention::create(*backend, plain, 1)},
                {"minference", MInference::create(*backend, e4m3, 0.2f),
                 MInference::create(*backend, plain, 0.2f),
                 MInference::create(*backend, plain, MInference::kEverything)}};
  for (Way& way : ways) {
    CAPTURE(way.name);
    for (const std::int64_t rows : {kTokens, std::int64_t{1280}}) {
      const std::vector<T> expected = floats.run_attention(*way.of_floats, rows);
      CHECK(distance(quantized.run_attention(*way.of_e4m3, rows), expected) < tolerance);
      // It is the selection that makes the result.
      CHECK(distance(floats.run_attention(*way.other, rows), expected) > 10 * tolerance);
    }
  }
}

}  // namespace
}  // namespace nvllm::kvcache
