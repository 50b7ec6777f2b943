// Penalties, bias and banned tokens on the GPU: one block per tile of a row. It counts in shared
// memory how often its tokens occur in the history, marks the banned ones, and then changes each
// logit once.

#include "kernels/sampling/backends.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_steps.h"
#include "kernels/sampling/sm80/sampling.cuh"

namespace nvllm::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kTile = 8192;  // logits per block

struct Params : PenaltiesView {
  unsigned tiles;

  explicit Params(const ApplyPenalties& args)
      : PenaltiesView(args), tiles(static_cast<unsigned>((rows.own + kTile - 1) / kTile)) {}
};

// One tile's tokens.
struct Tile {
  long long begin;  // its first id
  int size;

  // The index of an id; negative: not in this tile.
  __device__ int find(int id) const {
    const long long i = id - begin;
    return id >= 0 && i >= 0 && i < size ? static_cast<int>(i) : -1;
  }
};

__global__ void __launch_bounds__(kThreads) apply_penalties_kernel(const Params p) {
  pdl_begin();
  __shared__ unsigned seen[kTile];         // count, and kInPrompt
  __shared__ unsigned banned[kTile / 32];  // one bit each
  __shared__ unsigned biased[kTile / 32];
  const long long row = blockIdx.x / p.tiles;
  const int slot = p.rows.slots[row];
  if (slot < 0) return;
  const SlotParams& params = p.rows.params[slot];
  if ((params.flags & SlotParams::kChangesLogits) == 0) return;
  const bool penalizes = (params.flags & SlotParams::kPenalties) != 0;
  const long long first = static_cast<long long>(blockIdx.x % p.tiles) * kTile;
  const Tile tile{p.rows.first_id + first,
                  static_cast<int>(p.rows.own - first < kTile ? p.rows.own - first : kTile)};
  const int position = p.rows.positions[row];
  const RowLists words(p.lists + slot * p.list_words, params);
  const RowHistory history{p.history, p.block_table + row * p.table_stride, p.block_size};

  const unsigned* allowed = p.allowed + slot * p.allowed_words + first / 32;
  const bool all_allowed = (params.flags & SlotParams::kAllowed) == 0;
  for (int w = threadIdx.x; w < kTile / 32; w += kThreads) {
    banned[w] = all_allowed || w * 32 >= tile.size ? 0 : ~allowed[w];
    biased[w] = 0;
  }
  if (penalizes) {
    for (int i = threadIdx.x; i < kTile; i += kThreads) seen[i] = 0;
  }
  __syncthreads();

  const auto ban = [&](int id) {
    const int i = tile.find(id);
    if (i >= 0) atomicOr(banned + i / 32, 1u << i % 32);
  };
  if (position < params.min_length) {
    for (int i = threadIdx.x; i < params.ends; i += kThreads) ban(words.ends[i]);
  }
  for (int i = threadIdx.x; i < params.bad_words; i += kThreads) {
    // Comparing is expensive, so first check whether the word's last token is in this tile.
    if (tile.find(words.word_tokens[words.word_ends[i] - 1]) >= 0) {
      ban(words.banned_by(i, history, position));
    }
  }
  if (penalizes) {
    for (int i = threadIdx.x; i < position; i += kThreads) {
      const int at = tile.find(history.at(i));
      if (at < 0) continue;
      if (i < params.prompt_length) {
        atomicOr(seen + at, kInPrompt);
      } else {
        atomicAdd(seen + at, 1u);
      }
    }
  }
  __syncthreads();

  const float* from = p.rows.logits + row * p.rows.stride + first;
  float* to = const_cast<float*>(p.rows.sampled_logits(row, params.flags)) + first;
  const auto changed = [&](float logit, int i, float bias) {
    if (banned[i / 32] >> i % 32 & 1) logit = kMinusInfinity;
    logit += bias;  // 0 for most, which can only turn -0 into 0
    return penalizes ? penalized(logit, seen[i], params) : logit;
  };
  // Each id has at most one bias. Those logits are changed first, and then skipped.
  for (int b = threadIdx.x; b < params.biases; b += kThreads) {
    const int i = tile.find(words.bias_ids[b]);
    if (i < 0) continue;
    to[i] = changed(from[i], i, words.biases[b]);
    atomicOr(biased + i / 32, 1u << i % 32);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tile.size; i += kThreads) {
    if ((biased[i / 32] >> i % 32 & 1) == 0) to[i] = changed(from[i], i, 0.0f);
  }
}

}  // namespace

void apply_penalties(const ApplyPenalties& args, Stream& stream) {
  const Params p(args);
  if (p.rows.own == 0) return;
  launch_with_pdl("launching apply_penalties", apply_penalties_kernel,
                  static_cast<unsigned>(p.rows.rows) * p.tiles, kThreads,
                  nvllm::cuda::native(stream), p);
}

}  // namespace nvllm::kernels::cuda
