// XAttention with memory for gathered keys: its segments, and the calls of a prompt, select the
// same as without.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/testing/cases.h"
#include "kvcache/policies/prompt_policy.h"

namespace nvllm::kvcache {
namespace {

using kernels::testing::normal_values;
using kernels::testing::Placed;

constexpr std::int64_t kHeads = 16, kHeadDim = 64, kTokens = 2500, kBlock = 16;
constexpr std::int64_t kBlocks = (kTokens + kBlock - 1) / kBlock;

// The limits of prompts of up to a million tokens, where segments are as short as they get.
PromptLimits limits(std::size_t key_bytes) {
  return {.rows = kTokens, .tokens = 1 << 20, .heads = kHeads, .key_bytes = key_bytes};
}

// Queries, keys and values of a prompt with one KV head, in blocks from anywhere.
template <typename T>
class Prompt {
 public:
  Prompt(Backend& backend, Stream& stream)
      : stream_(stream),
        queries_(backend, stream, normal_values<T>(kTokens * kHeads * kHeadDim, 1, 0, 3)),
        keys_(backend, stream, normal_values<T>(kBlocks * kBlock * kHeadDim, 2)),
        values_(backend, stream, normal_values<T>(kBlocks * kBlock * kHeadDim, 3)),
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
  Placed<T> queries_, keys_, values_;
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

}  // namespace
}  // namespace nvllm::kvcache
