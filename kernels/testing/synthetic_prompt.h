// SyntheticPrompt: queries and keys of a long prompt that attend as those of models do: noise, the first tokens (a
// sink), the neighbours (a band), a few tokens from everywhere (columns) and a few distances (diagonals). For
// benchmarks of what sparse attention makes of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "device/backend.h"
#include "kernels/prompt_rows.h"

namespace nvllm::kernels::testing {

struct SyntheticShape {
  std::int64_t tokens = 0;
  std::int64_t heads = 32, kv_heads = 8;
  std::int64_t head_dim = 128;  // there is no other
  std::int64_t block_size = 16;
};

// Elements 0 to 63 of a head are noise, 64 to 95 make the band, 96 to 123 two diagonals, 124 the sink and the
// columns. Heads are alike, but for their noise.
class SyntheticPrompt {
 public:
  SyntheticPrompt(Backend& backend, Stream& stream, const SyntheticShape& shape) : shape_(shape) {
    make(backend, stream, shape.heads, true, queries_);
    make(backend, stream, shape.kv_heads, false, keys_);
    make(backend, stream, shape.kv_heads, false, values_);
    const std::int64_t blocks = shape.tokens / shape.block_size;
    table_ = backend.allocate(MemoryKind::device, blocks * sizeof(std::int32_t), "benchmark");
    const Buffer host = backend.allocate(MemoryKind::pinned, table_.bytes(), "benchmark");
    const std::vector<std::int32_t> order = block_order();
    for (std::int64_t i = 0; i < blocks; ++i) {
      static_cast<std::int32_t*>(host.data())[order[i]] = static_cast<std::int32_t>(i);
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
  static constexpr int kNoise = 64, kHead = 128, kBandPairs = 16, kDiagonals = 2, kPairs = 7;
  static constexpr float kBandSize = 2.6f, kDiagonalSize = 3.6f, kSinkQuery = 4, kSinkKey = 28,
                         kColumnKey = 25;
  static constexpr std::int64_t kSinks = 4, kBetweenColumns = 4096;

  // What all heads of a token share, behind the noise.
  static void structure(std::int64_t token, std::int64_t tokens, bool query, float* to) {
    const auto turn = [&](double place, double frequency, float size, float*& at) {
      *at++ = size * static_cast<float>(std::cos(frequency * place));
      *at++ = size * static_cast<float>(std::sin(frequency * place));
    };
    float* at = to;
    for (int pair = 0; pair < kBandPairs; ++pair) {
      const double wave = 64.0 * std::pow(2048.0 / 64, pair / double{kBandPairs - 1});
      turn(static_cast<double>(token), 6.283185307 / wave, kBandSize, at);
    }
    for (int diagonal = 0; diagonal < kDiagonals; ++diagonal) {
      const double offset = query ? 0 : static_cast<double>(tokens) / (3 + 2 * diagonal);
      for (int pair = 0; pair < kPairs; ++pair) {
        turn(static_cast<double>(token) + offset, 0.011 * (pair * pair + 1) * 1.618, kDiagonalSize,
             at);
      }
    }
    const bool column = (token * 2654435761u >> 4) % kBetweenColumns == 7;
    *at++ = query ? kSinkQuery : token < kSinks ? kSinkKey : column ? kColumnKey : 0;
    while (at < to + kHead - kNoise) *at++ = 0;
  }

  void make(Backend& backend, Stream& stream, std::int64_t heads, bool query, Buffer& to) const {
    constexpr std::int64_t kChunk = 4096;  // tokens
    const std::size_t row = static_cast<std::size_t>(heads * kHead) * sizeof(Bf16);
    to = backend.allocate(MemoryKind::device, static_cast<std::size_t>(shape_.tokens) * row,
                          "benchmark");
    const Buffer host = backend.allocate(MemoryKind::pinned, kChunk * row, "benchmark");
    std::mt19937 bits(query ? 1 : 2);
    std::normal_distribution<float> normal;
    std::vector<Bf16> pool(1 << 16);  // noise
    for (Bf16& value : pool) value = from_float<Bf16>(normal(bits));
    const std::vector<std::int32_t> order = block_order();
    for (std::int64_t first = 0; first < shape_.tokens; first += kChunk) {
      const std::int64_t count = std::min(kChunk, shape_.tokens - first);
      for (std::int64_t i = 0; i < count; ++i) {
        float shared[kHead - kNoise];
        const std::int64_t token = query ? first + i : token_at(first + i, order);
        structure(token, shape_.tokens, query, shared);
        Bf16 narrow[kHead - kNoise];
        for (int d = 0; d < kHead - kNoise; ++d) narrow[d] = from_float<Bf16>(shared[d]);
        auto* out = static_cast<Bf16*>(host.data()) + i * heads * kHead;
        for (std::int64_t head = 0; head < heads; ++head, out += kHead) {
          std::memcpy(out, &pool[bits() % (pool.size() - kNoise)], kNoise * sizeof(Bf16));
          std::memcpy(out + kNoise, narrow, sizeof(narrow));
        }
      }
      backend.copy(static_cast<unsigned char*>(to.data()) + static_cast<std::size_t>(first) * row,
                   host.data(), static_cast<std::size_t>(count) * row, stream);
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
  std::int64_t token_at(std::int64_t place, const std::vector<std::int32_t>& order) const {
    return order[place / shape_.block_size] * shape_.block_size + place % shape_.block_size;
  }

  const SyntheticShape shape_;
  Buffer queries_, keys_, values_, table_;
};

}  // namespace nvllm::kernels::testing
