// AttentionCase: a call of attention with its values on the host, and the tolerance of its results.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/cpu/stream.h"
#include "device/e4m3.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/backends.h"
#include "kernels/attention/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {

struct Sequence {
  std::int64_t rows, tokens;
};

struct AttentionShape {
  std::vector<Sequence> sequences;
  std::int64_t heads, kv_heads, head_dim;
  std::int64_t group, first_head = 0;
  std::int64_t block_size = 16;  // 0: contiguous
};

inline AttentionShape whole_groups(std::vector<Sequence> sequences, std::int64_t kv_heads,
                                   std::int64_t group, std::int64_t head_dim,
                                   std::int64_t block_size = 16) {
  return {std::move(sequences), kv_heads * group, kv_heads, head_dim, group, 0, block_size};
}

// One call: its tensors' values on the host. Keys and values are kept per sequence and token, and
// laid out as the shape says when it is run; what no token lies in is NaN. Kv: the cache's type.
template <typename T, typename Kv = T>
struct AttentionCase {
  static constexpr std::int32_t kNoBlock = 1 << 28;

  AttentionShape shape;
  std::vector<T> q;              // [rows][heads][head_dim]
  std::vector<Kv> k, v;          // [sequence][token][kv_head][head_dim]
  std::vector<float> kv_scales;  // [2][kv_heads], of E4m3; empty: none
  float scale;
  std::int64_t q_gap = 0;       // elements between rows of q
  std::int64_t slack_rows = 0;  // by which the bounds are larger than they need to be
  std::int64_t slack_tokens = 0;
  std::int64_t singles = 0;  // attention() is told that the first sequences have one row each
  unsigned layout = 1;       // seed of the order of blocks; 0: consecutive
  std::vector<std::int32_t> visible;  // per sequence; empty: none
  std::int64_t window = 0;
  std::vector<T> sinks;  // [heads]; empty: none
  // Entries of the block table that are before the windows of all rows name a block of NaN, on GPUs
  // none: kernels of the CPU read the keys of a whole tile.
  bool forget = false;
  bool as_float = false;  // the results, which are rounded to T when they are fetched
  std::vector<T> out;
  std::vector<float> lse;
  bool weights_rounded = false;  // to T: tensor cores take no others

  explicit AttentionCase(AttentionShape s) : shape(std::move(s)) {
    q.resize(rows() * row_elements());
    k.resize(tokens() * token_elements());
    v.resize(k.size());
    scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  }

  static AttentionCase random(AttentionShape shape, unsigned seed) {
    AttentionCase c(std::move(shape));
    std::mt19937 bits(seed);
    const Normal normal;
    for (T& value : c.q) value = from_float<T>(normal(bits));
    for (Kv& value : c.k) value = from_float<Kv>(1.5f * normal(bits));
    for (Kv& value : c.v) value = from_float<Kv>(normal(bits));
    return c;
  }

  std::int64_t rows() const { return total(&Sequence::rows); }
  std::int64_t tokens() const { return total(&Sequence::tokens); }
  std::int64_t row_elements() const { return shape.heads * shape.head_dim; }
  std::int64_t token_elements() const { return shape.kv_heads * shape.head_dim; }

  // Runs the definition.
  void run_reference() {
    const auto backend = create_backend(DeviceKind::cpu);
    const auto stream = backend->create_stream();
    run(*backend, *stream, [](const Attention& args) { attention_reference(args); });
  }
  void run(Backend& backend) {
    const auto stream = backend.create_stream();
    run(backend, *stream, [&](const Attention& args) { attention(args, singles, *stream); });
    weights_rounded = backend.kind() == DeviceKind::cuda && sizeof(T) == 2;
  }
  // Runs on this many of the CPU's threads, with these instructions.
  void run(Backend& backend, int threads, cpu::InstructionSet set) {
    const auto stream = std::make_unique<nvllm::cpu::Stream>(
        "test", std::chrono::microseconds(10), std::make_shared<nvllm::cpu::ThreadPool>(threads));
    run(backend, *stream, [&](const Attention& args) { cpu::attention(args, *stream, set); });
  }

  // call(Attention) with its tensors in the backend's memory.
  template <typename Call>
  void run(Backend& backend, Stream& stream, const Call& call) {
    const std::int64_t sequences = shape.sequences.size();
    std::vector<std::int32_t> starts{0}, lengths;
    for (const Sequence& sequence : shape.sequences) {
      starts.push_back(starts.back() + static_cast<std::int32_t>(sequence.rows));
      lengths.push_back(static_cast<std::int32_t>(sequence.tokens));
    }
    const Cache cache = make_cache(backend.kind() == DeviceKind::cuda);
    const Placed q_there(backend, stream, rows_apart());
    const Placed keys(backend, stream, cache.keys), values(backend, stream, cache.values);
    const Placed scales(backend, stream, kv_scales);
    const Placed table(backend, stream, cache.table), starts_there(backend, stream, starts),
        lengths_there(backend, stream, lengths), visible_there(backend, stream, visible);
    const Placed sinks_there(backend, stream, sinks);
    out.assign(rows() * row_elements(), from_float<T>(-77));
    lse.assign(rows() * shape.heads, -77);
    Placed out_there(backend, stream, out);
    Placed floats_there(backend, stream, std::vector<float>(as_float ? out.size() : 0, -77.0f));
    Placed lse_there(backend, stream, lse);

    Attention args;
    args.out = as_float ? floats_there.view({rows(), shape.heads, shape.head_dim})
                        : out_there.view({rows(), shape.heads, shape.head_dim});
    args.q = q_there.view({rows(), shape.heads, shape.head_dim});
    args.q.stride[0] += q_gap;
    args.kv.keys = keys.view({cache.blocks, cache.block_size, shape.kv_heads, shape.head_dim});
    args.kv.values = values.view({cache.blocks, cache.block_size, shape.kv_heads, shape.head_dim});
    if (!kv_scales.empty()) args.kv_scales = scales.view({2, shape.kv_heads});
    if (shape.block_size > 0) args.kv.block_table = table.view({sequences, cache.width});
    args.query_start = starts_there.view({sequences + 1});
    args.kv_length = lengths_there.view({sequences});
    if (!visible.empty()) args.visible = visible_there.view({sequences});
    if (!sinks.empty()) args.sinks = sinks_there.view({shape.heads});
    args.lse = lse_there.view({rows(), shape.heads});
    args.group = shape.group;
    args.first_head = shape.first_head;
    args.scale = scale;
    args.window = window;
    args.max_query_rows = longest(&Sequence::rows) + slack_rows;
    args.max_kv_length = longest(&Sequence::tokens) + slack_tokens;
    stream.synchronize();  // the plain definition does not wait for copies
    call(args);
    out = out_there.fetch();
    if (as_float) {
      const std::vector<float> floats = floats_there.fetch();
      std::transform(floats.begin(), floats.end(), out.begin(),
                     [](float x) { return from_float<T>(x); });
    }
    lse = lse_there.fetch();
  }

 private:
  std::int64_t total(std::int64_t Sequence::*what) const {
    std::int64_t sum = 0;
    for (const Sequence& sequence : shape.sequences) sum += sequence.*what;
    return sum;
  }
  std::int64_t longest(std::int64_t Sequence::*what) const {
    std::int64_t max_value = 0;
    for (const Sequence& sequence : shape.sequences)
      max_value = std::max(max_value, sequence.*what);
    return max_value;
  }

  // Keys and values as they lie in a cache.
  struct Cache {
    std::int64_t block_size, width, blocks;  // width: of the table
    std::vector<Kv> keys, values;            // [blocks][block_size][kv_head][head_dim]
    std::vector<std::int32_t> table;
  };

  // Every sequence gets blocks from all over the cache; the other half is nobody's. Entries of the
  // table that no token needs name a block of NaN. Contiguous blocks have room for more than the
  // longest sequence.
  Cache make_cache(bool on_gpu) const {
    const std::int64_t sequences = shape.sequences.size(), max_value = longest(&Sequence::tokens);
    const bool paged = shape.block_size > 0;
    Cache cache;
    cache.block_size = paged ? shape.block_size : max_value + 3;
    cache.width = paged ? max_value / cache.block_size + 2 : 1;
    cache.blocks = paged ? 2 * sequences * cache.width + 1 : sequences;
    std::vector<std::int32_t> ids(cache.blocks);
    std::iota(ids.begin(), ids.end(), 0);
    if (paged && layout != 0) std::shuffle(ids.begin(), ids.end(), std::mt19937(layout));
    cache.table.assign(sequences * cache.width, ids.empty() ? 0 : ids.back());
    cache.keys.assign(cache.blocks * cache.block_size * token_elements(), from_float<Kv>(kNan));
    cache.values = cache.keys;
    std::int64_t from = 0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      for (std::int64_t t = 0; t < shape.sequences[s].tokens; ++t, from += token_elements()) {
        std::int32_t& block = cache.table[s * cache.width + t / cache.block_size];
        if (t % cache.block_size == 0) block = ids[s * cache.width + t / cache.block_size];
        const std::int64_t to =
            (std::int64_t{block} * cache.block_size + t % cache.block_size) * token_elements();
        std::copy_n(&k[from], token_elements(), &cache.keys[to]);
        std::copy_n(&v[from], token_elements(), &cache.values[to]);
      }
      if (forget && paged) forget_unseen(s, on_gpu ? kNoBlock : ids.back(), cache);
    }
    return cache;
  }

  void forget_unseen(std::int64_t sequence, std::int32_t block, Cache& cache) const {
    const auto [rows, tokens] = shape.sequences[sequence];
    const std::int64_t unseen = std::max<std::int64_t>(0, tokens - rows + 1 - window);
    std::fill_n(cache.table.begin() + sequence * cache.width, unseen / cache.block_size, block);
  }

  // Rows of q, with NaN between them.
  std::vector<T> rows_apart() const {
    std::vector<T> apart(rows() * (row_elements() + q_gap), from_float<T>(kNan));
    for (std::int64_t r = 0; r < rows(); ++r) {
      std::copy_n(q.begin() + r * row_elements(), row_elements(),
                  apart.begin() + r * (row_elements() + q_gap));
    }
    return apart;
  }
};

inline bool close(float got, float expected, float tolerance) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected)) return got == expected;
  return std::fabs(got - expected) <= tolerance;
}

// How many results are further from the expected ones than rounding explains. `expected_rounded`:
// the expected ones are rounded to T themselves.
//
// A score is a dot of head_dim terms and at most S = |q| |k| scale, off by a few of float32's
// roundings of S; its weight is off by that relatively, and log-sum-exp absolutely. Tensor cores
// take weights in T, with a cache of E4m3 in float16, so there each is off by a rounding of that
// more. A result is an average of values
// with these weights: the relative error of the weights, times the largest |v|, is its error.
template <typename T, typename Kv>
int count_wrong(const AttentionCase<T, Kv>& got, const std::vector<float>& out,
                const std::vector<float>& lse, bool expected_rounded) {
  const std::int64_t head_dim = got.shape.head_dim;
  const auto longest = [&](const auto& x) {
    double max_value = 0;
    for (std::size_t head = 0; head < x.size() / head_dim; ++head) {
      double sum = 0;
      for (std::int64_t i = 0; i < head_dim; ++i) {
        const double value = to_float(x[head * head_dim + i]);
        sum += value * value;
      }
      if (std::isfinite(sum)) max_value = std::max(max_value, sum);
    }
    return static_cast<float>(std::sqrt(max_value));
  };
  float largest_v = 0;
  for (const Kv value : got.v) {
    if (std::isfinite(to_float(value))) largest_v = std::max(largest_v, std::fabs(to_float(value)));
  }
  float of_keys = got.kv_scales.empty() ? 1.0f : 0.0f, of_values = of_keys;
  for (std::size_t i = 0; i < got.kv_scales.size(); ++i) {
    float& largest = i < got.kv_scales.size() / 2 ? of_keys : of_values;
    largest = std::max(largest, got.kv_scales[i]);
  }
  largest_v *= of_values;
  const float score = longest(got.q) * longest(got.k) * of_keys * got.scale;
  using Weight = std::conditional_t<std::is_same_v<T, Kv>, T, F16>;
  const float of_lse = (16 * score + 32) * 0x1p-24f;
  const float of_weight = of_lse + (got.weights_rounded ? Limits<Weight>::kUlp / 2 : 0);
  const float of_out = Limits<T>::kUlp / 2 * (expected_rounded ? 2 : 1);
  int wrong = 0;
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    const float tolerance = std::fabs(out[i]) * of_out + largest_v * of_weight + Limits<T>::kMin;
    wrong += !close(to_float(got.out[i]), out[i], tolerance);
  }
  for (std::size_t i = 0; i < got.lse.size(); ++i) {
    wrong += !close(got.lse[i], lse[i], of_lse + std::fabs(lse[i]) * 0x1p-22f);
  }
  return wrong;
}

template <typename T, typename Kv>
int count_wrong(const AttentionCase<T, Kv>& got, const AttentionCase<T, Kv>& expected) {
  std::vector<float> out;
  for (const T value : expected.out) out.push_back(to_float(value));
  return count_wrong(got, out, expected.lse, true);
}

template <typename T, typename Kv>
void check_against_reference(Backend& backend, const AttentionCase<T, Kv>& input) {
  AttentionCase<T, Kv> got = input;
  AttentionCase<T, Kv> expected = input;
  got.run(backend);
  expected.run_reference();
  CHECK(count_wrong(got, expected) == 0);
}

// `count` sequences of up to max_rows rows, which come after at least one and up to max_tokens
// tokens.
inline std::vector<Sequence> some_sequences(std::mt19937& random, int count, int max_rows,
                                            int max_tokens) {
  std::vector<Sequence> sequences;
  for (int i = 0; i < count; ++i) {
    const std::int64_t rows = random() % (max_rows + 1);
    sequences.push_back({rows, rows + 1 + static_cast<std::int64_t>(random() % max_tokens)});
  }
  return sequences;
}

}  // namespace nvllm::kernels::testing
