// SparseCase: a call of sparse attention with its values on the host.
#pragma once

#include <numeric>

#include "kernels/attention/testing/attention_case.h"
#include "kernels/sparse/sparse_attention.h"
#include "kernels/sparse/testing/references.h"

namespace nvllm::kernels::testing {

// How the tokens of a row block and head are chosen.
struct SparseLists {
  std::vector<std::vector<std::int32_t>> tiles;                            // [row block * heads]
  std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> ranges;  // if there are no tiles
  std::vector<std::vector<std::int32_t>> columns;

  bool by_tiles() const { return !tiles.empty(); }
};

// Kv: the cache's type.
template <typename T, typename Kv = T>
struct SparseCase {
  AttentionCase<T, Kv> dense;  // of one sequence
  SparseLists lists;

  std::int64_t rows() const { return dense.rows(); }
  std::int64_t tokens() const { return dense.tokens(); }

  void run(Backend& backend, bool reference = false) {
    const auto stream = backend.create_stream();
    dense.run(backend, *stream,
              [&](const Attention& args) { call(args, backend, *stream, reference); });
    dense.weights_rounded = !reference && backend.kind() == DeviceKind::cuda && sizeof(T) == 2;
  }

 private:
  static std::int32_t* put(std::int32_t* to, std::int32_t number) {
    *to = number;
    return to + 1;
  }
  static std::int32_t* put(std::int32_t* to, const std::pair<std::int32_t, std::int32_t>& range) {
    return put(put(to, range.first), range.second);
  }

  // [lists][capacity * width], filled up with what must not be read.
  template <typename Entry>
  static std::pair<std::vector<std::int32_t>, std::int64_t> pack(
      const std::vector<std::vector<Entry>>& lists, std::int64_t width) {
    std::size_t capacity = 1;
    for (const auto& list : lists) capacity = std::max(capacity, list.size());
    std::vector<std::int32_t> packed(lists.size() * capacity * width, -1000000);
    for (std::size_t i = 0; i < lists.size(); ++i) {
      std::int32_t* to = &packed[i * capacity * width];
      for (const Entry& entry : lists[i]) to = put(to, entry);
    }
    return {packed, capacity};
  }
  template <typename Entry>
  static std::vector<std::int32_t> counts(const std::vector<std::vector<Entry>>& lists) {
    std::vector<std::int32_t> sizes;
    for (const auto& list : lists) sizes.push_back(static_cast<std::int32_t>(list.size()));
    return sizes;
  }

  void call(const Attention& dense_args, Backend& backend, Stream& stream, bool reference) {
    SparseAttention args;
    args.out = dense_args.out;
    args.q = dense_args.q;
    args.kv = dense_args.kv;
    args.kv_scales = dense_args.kv_scales;
    args.lse = dense_args.lse;
    args.group = dense_args.group;
    args.first_head = dense_args.first_head;
    args.scale = dense_args.scale;
    args.first_position = tokens() - rows();
    const bool tiled = lists.by_tiles();
    const auto first = tiled ? pack(lists.tiles, 1) : pack(lists.ranges, 2);
    const auto second = pack(lists.columns, 1);
    const Placed first_counts(backend, stream, tiled ? counts(lists.tiles) : counts(lists.ranges));
    const Placed second_counts(backend, stream, counts(lists.columns));
    const Placed first_there(backend, stream, first.first);
    const Placed second_there(backend, stream, second.first);
    const std::int64_t heads = dense.shape.heads;
    const std::int64_t blocks = (rows() + kSparseTile - 1) / kSparseTile;
    if (tiled) {
      args.tile_counts = first_counts.view({blocks, heads});
      args.tiles = first_there.view({blocks, heads, first.second});
    } else {
      args.range_counts = first_counts.view({blocks, heads});
      args.ranges = first_there.view({blocks, heads, first.second, 2});
      args.column_counts = second_counts.view({blocks, heads});
      args.columns = second_there.view({blocks, heads, second.second});
    }
    stream.synchronize();
    if (reference) {
      sparse_attention_reference(args);
    } else {
      sparse_attention(args, stream);
    }
    stream.synchronize();
  }
};

// Each tile with this probability, also some after the rows; sometimes none at all.
inline SparseLists random_tiles(std::mt19937& random, std::int64_t lists, std::int64_t tokens) {
  SparseLists chosen;
  for (std::int64_t i = 0; i < lists; ++i) {
    auto& tiles = chosen.tiles.emplace_back();
    const unsigned one_in = 1 + random() % 4;
    if (random() % 6 == 0) continue;
    for (std::int32_t tile = 0; tile < tokens / 128 + 2; ++tile) {
      if (random() % one_in == 0) tiles.push_back(tile);
    }
  }
  return chosen;
}

// Ranges of any length and single columns between them.
inline SparseLists random_ranges(std::mt19937& random, std::int64_t lists, std::int64_t tokens) {
  SparseLists chosen;
  for (std::int64_t i = 0; i < lists; ++i) {
    auto& ranges = chosen.ranges.emplace_back();
    auto& columns = chosen.columns.emplace_back();
    if (random() % 6 == 0) continue;
    const unsigned longest = random() % 2 == 0 ? 5 : 200;
    const bool only_ranges = random() % 4 == 0, only_columns = !only_ranges && random() % 4 == 0;
    for (std::int32_t t = 0; t < tokens + 10;) {
      const auto length = static_cast<std::int32_t>(1 + random() % longest);
      const unsigned kind = random() % 3;
      if (kind == 0 && !only_columns) ranges.emplace_back(t, t + length);
      if (kind == 1 && !only_ranges) {
        for (std::int32_t c = t; c < t + length; ++c) {
          if (random() % 3 == 0) columns.push_back(c);
        }
      }
      t += length;
    }
  }
  return chosen;
}

}  // namespace nvllm::kernels::testing
