// SyntheticPrompt: queries and keys of a long prompt that attend as heads of models are reported to
// do: to the first tokens (a sink), to the neighbours (a band), to a few tokens from everywhere
// (columns), to what lies a few distances back (diagonals), and a little to everything. For
// benchmarks of what sparse attention makes of it.
//
// How it is made. A score is a sum of four parts, each of which has elements of its own:
// - content, 76 elements: a key's is a moving average of noise over 16 tokens, a query's is that of
//   the keys at two
//   distances of its head (so there are two diagonals of some 16 tokens' width) and noise;
// - place, 24 pairs: as with rotary embeddings, of wavelengths from 512 to 2^20 tokens, so that
//   weights fall
//   with a power of the distance, from some 128 tokens on, and ripple far away;
// - sink, one element, of the first four tokens; columns, three elements, one of which is set of
//   every
//   4096th token or so.
// Strengths differ by up to 15% of the score from one query head to the next, distances at will.
//
// What comes of it: shares of a row's attention, mean of 8 heads and 16 rows of each, in 131072
// tokens: the sink 9%, columns 14%, less than 1024 tokens back 56%, less than 8192 another 10%,
// diagonals 9%, everything else 2.4% (1.4% in 65536 tokens, 0.6% in 32768); from one head to the
// next a structure may have a fifth or five times as much. The constants were chosen so that
// structures hold 95% or more; no policy was asked.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "device/backend.h"
#include "kernels/sparse/prompt_rows.h"

namespace nvllm::kernels::testing {

struct SyntheticShape {
  std::int64_t tokens = 0;
  std::int64_t heads = 32, kv_heads = 8;
  std::int64_t head_dim = 128;  // there is no other
  std::int64_t block_size = 16;
};

class SyntheticPrompt {
 public:
  SyntheticPrompt(Backend& backend, Stream& stream, const SyntheticShape& shape)
      : shape_(shape), order_(block_order()) {
    const auto tokens = static_cast<std::size_t>(shape.tokens);
    for (std::int64_t head = 0; head < shape.heads; ++head) heads_.emplace_back(head, shape.tokens);
    pool_.resize(kPool);
    std::mt19937 bits(1);
    std::normal_distribution<float> normal;
    for (float& value : pool_) value = normal(bits);
    places_.resize(tokens * 2 * kPairs);
    for (std::size_t t = 0; t < tokens; ++t)
      find_place(static_cast<double>(t), &places_[t * 2 * kPairs]);
    content_.resize(static_cast<std::size_t>(shape.kv_heads));
    for_kv_heads([&](std::int64_t head) { content_[head] = make_content(head); });

    const std::int64_t group = shape.heads / shape.kv_heads;
    make(backend, stream, shape.heads, queries_,
         [&](std::int64_t kv_head, std::int64_t i, Bf16* row) {
           for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
             write_query(head, kv_head, i, row + head * kHead);
           }
         });
    make(backend, stream, shape.kv_heads, keys_, [&](std::int64_t head, std::int64_t i, Bf16* row) {
      write_key(head, token_at(i), row + head * kHead);
    });
    make(backend, stream, shape.kv_heads, values_,
         [&](std::int64_t head, std::int64_t i, Bf16* row) {
           const float* noise = noise_of(i * shape_.kv_heads + head, 3);
           for (int d = 0; d < kHead; ++d) row[head * kHead + d] = from_float<Bf16>(noise[d]);
         });
    content_.clear();
    places_.clear();

    table_ =
        backend.allocate(MemoryKind::device, order_.size() * sizeof(std::int32_t), "benchmark");
    const Buffer host = backend.allocate(MemoryKind::pinned, table_.bytes(), "benchmark");
    for (std::size_t i = 0; i < order_.size(); ++i) {
      static_cast<std::int32_t*>(host.data())[order_[i]] = static_cast<std::int32_t>(i);
    }
    backend.copy(table_.data(), host.data(), host.bytes(), stream);
    stream.synchronize();
  }

  // All rows at once.
  PromptRows rows() const {
    const SyntheticShape& s = shape_;
    const std::int64_t blocks = s.tokens / s.block_size;
    PromptRows rows;
    rows.q = TensorView(queries_.data(), DType::bf16, {s.tokens, s.heads, s.head_dim});
    rows.kv.keys =
        TensorView(keys_.data(), DType::bf16, {blocks, s.block_size, s.kv_heads, s.head_dim});
    rows.kv.values =
        TensorView(values_.data(), DType::bf16, {blocks, s.block_size, s.kv_heads, s.head_dim});
    rows.kv.block_table = TensorView(table_.data(), DType::i32, {1, blocks});
    rows.group = s.heads / s.kv_heads;
    rows.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
    return rows;
  }

 private:
  static constexpr int kHead = 128, kContent = 76, kPairs = 24, kColumnKinds = 3, kDiagonals = 2;
  static_assert(kContent + 2 * kPairs + 1 + kColumnKinds == kHead);
  static constexpr int kAveraged = 16;  // tokens
  static constexpr std::int64_t kSinks = 4, kBetweenColumns = 4096, kPool = 1 << 18;
  static constexpr double kShortestWave = 512, kLongestWave = 1 << 20;
  // What each part adds to a score, in natural units, and the queries' own noise.
  static constexpr float kSink = 13.5f, kColumn = 8.5f, kPlace = 12, kDiagonal = 11.5f,
                         kNoise = 0.8f;
  static constexpr float kVaries = 0.15f;

  // A query head: its strengths, as parts of the above, and its distances.
  struct Head {
    float sink, place, diagonal[kDiagonals], column[kColumnKinds];
    std::int64_t distance[kDiagonals];

    Head(std::int64_t number, std::int64_t tokens) {
      std::mt19937 bits(static_cast<unsigned>(100 + number));
      const auto between = [&](double low, double high) {
        return low + (high - low) * static_cast<double>(bits()) * 0x1p-32;
      };
      const auto strength = [&] { return static_cast<float>(between(1 - kVaries, 1 + kVaries)); };
      sink = strength();
      place = strength();
      for (float& value : diagonal) value = strength();
      for (float& value : column) value = strength();
      distance[0] = static_cast<std::int64_t>(between(0.05, 0.35) * static_cast<double>(tokens));
      distance[1] = static_cast<std::int64_t>(between(0.35, 0.8) * static_cast<double>(tokens));
    }
  };

  // The root of what a query's and a key's elements add to a score, before it is scaled.
  static float root(float score) { return std::sqrt(score * std::sqrt(static_cast<float>(kHead))); }

  // Some of the same noise for the same number and use.
  const float* noise_of(std::int64_t number, unsigned use) const {
    std::uint64_t bits = (static_cast<std::uint64_t>(number) * 8 + use) * 0x9e3779b97f4a7c15u;
    bits ^= bits >> 29;
    bits *= 0xbf58476d1ce4e5b9u;
    return &pool_[(bits >> 32) % (kPool - kHead)];
  }

  static void find_place(double token, float* to) {
    for (int pair = 0; pair < kPairs; ++pair) {
      const double wave =
          kShortestWave * std::pow(kLongestWave / kShortestWave, pair / double{kPairs - 1});
      *to++ = static_cast<float>(std::cos(6.283185307 / wave * token));
      *to++ = static_cast<float>(std::sin(6.283185307 / wave * token));
    }
  }

  // [tokens][kContent] of a KV head.
  std::vector<float> make_content(std::int64_t head) const {
    std::vector<float> content(static_cast<std::size_t>(shape_.tokens) * kContent);
    const auto noise = [&](std::int64_t token) {
      return noise_of((token + kAveraged) * shape_.kv_heads + head, 1);
    };
    const float factor = 1 / std::sqrt(static_cast<float>(kAveraged));
    float sum[kContent] = {};
    for (std::int64_t t = 1 - kAveraged; t < shape_.tokens; ++t) {
      const float *comes = noise(t), *goes = t > 0 ? noise(t - kAveraged) : nullptr;
      for (int d = 0; d < kContent; ++d) {
        sum[d] += comes[d] - (goes != nullptr ? goes[d] : 0);
        if (t >= 0) content[static_cast<std::size_t>(t) * kContent + d] = sum[d] * factor;
      }
    }
    return content;
  }
  const float* content_of(std::int64_t kv_head, std::int64_t token) const {
    return &content_[kv_head][static_cast<std::size_t>(token) * kContent];
  }
  const float* place_of(std::int64_t token) const {
    return &places_[static_cast<std::size_t>(token) * 2 * kPairs];
  }

  void write_query(std::int64_t number, std::int64_t kv_head, std::int64_t token, Bf16* to) const {
    const Head& head = heads_[number];
    float row[kHead];
    const float* noise = noise_of(token * shape_.heads + number, 2);
    for (int d = 0; d < kContent; ++d) row[d] = kNoise * noise[d];
    for (int i = 0; i < kDiagonals; ++i) {
      if (token < head.distance[i]) continue;
      const float factor = kDiagonal * head.diagonal[i] * std::sqrt(float{kHead}) / kContent;
      const float* meant = content_of(kv_head, token - head.distance[i]);
      for (int d = 0; d < kContent; ++d) row[d] += factor * meant[d];
    }
    float* at = row + kContent;
    const float* place = place_of(token);
    for (int d = 0; d < 2 * kPairs; ++d) *at++ = root(kPlace / kPairs) * head.place * place[d];
    *at++ = root(kSink) * head.sink;
    for (const float strength : head.column) *at++ = root(kColumn) * strength;
    for (int d = 0; d < kHead; ++d) to[d] = from_float<Bf16>(row[d]);
  }

  void write_key(std::int64_t kv_head, std::int64_t token, Bf16* to) const {
    float row[kHead];
    std::copy_n(content_of(kv_head, token), kContent, row);
    float* at = row + kContent;
    const float* place = place_of(token);
    for (int d = 0; d < 2 * kPairs; ++d) *at++ = root(kPlace / kPairs) * place[d];
    *at++ = token < kSinks ? root(kSink) : 0;
    const std::int64_t hashed = token * 2654435761u >> 4;
    const bool column = token >= kSinks && hashed % kBetweenColumns == 7;
    for (int kind = 0; kind < kColumnKinds; ++kind) {
      *at++ = column && hashed / kBetweenColumns % kColumnKinds == kind ? root(kColumn) : 0;
    }
    for (int d = 0; d < kHead; ++d) to[d] = from_float<Bf16>(row[d]);
  }

  // A thread for each.
  template <typename Work>
  void for_kv_heads(const Work& work) const {
    std::vector<std::thread> threads;
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) threads.emplace_back(work, head);
    for (std::thread& thread : threads) thread.join();
  }

  // [tokens, heads, 128] on the device; write(kv head, place, row) fills in what of a row belongs
  // to a KV head.
  template <typename Write>
  void make(Backend& backend, Stream& stream, std::int64_t heads, Buffer& to,
            const Write& write) const {
    constexpr std::int64_t kChunk = 4096;  // tokens
    const std::int64_t row = heads * kHead;
    const auto bytes = [&](std::int64_t rows) {
      return static_cast<std::size_t>(rows * row) * sizeof(Bf16);
    };
    to = backend.allocate(MemoryKind::device, bytes(shape_.tokens), "benchmark");
    const Buffer host = backend.allocate(MemoryKind::pinned, bytes(kChunk), "benchmark");
    auto* const rows = static_cast<Bf16*>(host.data());
    for (std::int64_t first = 0; first < shape_.tokens; first += kChunk) {
      const std::int64_t count = std::min(kChunk, shape_.tokens - first);
      for_kv_heads([&](std::int64_t kv_head) {
        for (std::int64_t i = 0; i < count; ++i) write(kv_head, first + i, rows + i * row);
      });
      backend.copy(static_cast<unsigned char*>(to.data()) + bytes(first), rows, bytes(count),
                   stream);
      stream.synchronize();
    }
  }

  // Which block of the sequence a block of the cache is: neighbours lie apart.
  std::vector<std::int32_t> block_order() const {
    std::vector<std::int32_t> order(static_cast<std::size_t>(shape_.tokens / shape_.block_size));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(5));
    return order;
  }
  std::int64_t token_at(std::int64_t place) const {
    return order_[place / shape_.block_size] * shape_.block_size + place % shape_.block_size;
  }

  const SyntheticShape shape_;
  const std::vector<std::int32_t> order_;
  std::vector<Head> heads_;
  // While it is made: noise, cosines and sines of all tokens, and by KV head the content of all
  // tokens.
  std::vector<float> pool_, places_;
  std::vector<std::vector<float>> content_;
  Buffer queries_, keys_, values_, table_;
};

}  // namespace nvllm::kernels::testing
