// PromptCase: queries and keys of one long prompt, on the host and in a backend's memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/sparse/prompt_rows.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {

struct PromptShape {
  std::int64_t rows, first_position;
  std::int64_t heads, kv_heads, group, first_head, head_dim;
  std::int64_t block_size = 16;  // 0: contiguous

  std::int64_t tokens() const { return first_position + rows; }
};

// Values of queries and keys; keys lie in blocks from all over a cache of twice as many.
template <typename T>
struct PromptCase {
  PromptShape shape;
  std::int64_t q_gap = 24;  // elements between rows of q
  std::vector<T> q;         // [rows][heads * head_dim + gap]
  std::vector<T> keys;      // [blocks][block_size][kv_heads][head_dim]
  std::vector<std::int32_t> table;
  std::int64_t block_size, blocks;
  float scale;

  PromptCase(const PromptShape& s, unsigned seed, float spread = 1) : shape(s) {
    block_size = s.block_size > 0 ? s.block_size : s.tokens() + 5;
    const std::int64_t used = (s.tokens() + block_size - 1) / block_size;
    blocks = s.block_size > 0 ? 2 * used + 1 : 1;
    std::vector<std::int32_t> ids(blocks);
    std::iota(ids.begin(), ids.end(), 0);
    if (s.block_size > 0) std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    table.assign(ids.begin(), ids.begin() + used);
    q = normal_values<T>(s.rows * row_elements(), seed + 1, 0, spread);
    keys.assign(blocks * block_size * token_elements(), from_float<T>(kNan));
    const std::vector<T> values = normal_values<T>(s.tokens() * token_elements(), seed + 2);
    for (std::int64_t t = 0; t < s.tokens(); ++t) {
      std::copy_n(&values[t * token_elements()], token_elements(), key(t, 0));
    }
    scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  }

  std::int64_t row_elements() const { return shape.heads * shape.head_dim + q_gap; }
  std::int64_t token_elements() const { return shape.kv_heads * shape.head_dim; }
  T* query(std::int64_t row, std::int64_t head) {
    return &q[row * row_elements() + head * shape.head_dim];
  }
  T* key(std::int64_t token, std::int64_t kv_head) {
    const std::int64_t at = table[token / block_size] * block_size + token % block_size;
    return &keys[at * token_elements() + kv_head * shape.head_dim];
  }

  PromptRows rows_at(T* q_data, T* key_data, std::int32_t* table_data) const {
    PromptRows rows;
    rows.q = TensorView(q_data, dtype_of<T>, {shape.rows, shape.heads, shape.head_dim});
    rows.q.stride[0] = row_elements();
    rows.kv.keys =
        TensorView(key_data, dtype_of<T>, {blocks, block_size, shape.kv_heads, shape.head_dim});
    rows.kv.values = rows.kv.keys;
    if (shape.block_size > 0) {
      rows.kv.block_table =
          TensorView(table_data, DType::i32, {1, static_cast<std::int64_t>(table.size())});
    }
    rows.first_position = shape.first_position;
    rows.group = shape.group;
    rows.first_head = shape.first_head;
    rows.scale = scale;
    return rows;
  }
  PromptRows here() { return rows_at(q.data(), keys.data(), table.data()); }
};

// The same in a backend's memory.
template <typename T>
class PlacedPrompt {
 public:
  PlacedPrompt(Backend& backend, Stream& stream, const PromptCase<T>& from)
      : case_(from),
        q_(backend, stream, from.q),
        keys_(backend, stream, from.keys),
        table_(backend, stream, from.table) {
    stream.synchronize();
  }
  PromptRows rows() const { return case_.rows_at(q_.data(), keys_.data(), table_.data()); }

 private:
  const PromptCase<T>& case_;
  Placed<T> q_, keys_;
  Placed<std::int32_t> table_;
};

inline const std::vector<PromptShape>& prompt_shapes() {
  static const std::vector<PromptShape> shapes = {
      {1, 0, 1, 1, 1, 0, 64},        {8, 0, 2, 1, 2, 0, 64},       {128, 0, 2, 2, 1, 0, 64},
      {300, 0, 3, 1, 3, 0, 64},      {640, 0, 4, 2, 2, 0, 32, 32}, {513, 0, 2, 1, 2, 0, 64, 0},
      {100, 1000, 3, 2, 2, 1, 64},   {256, 384, 2, 1, 2, 0, 128},  {65, 771, 2, 1, 4, 2, 40},
      {200, 333, 2, 1, 2, 0, 72, 0}, {130, 517, 1, 1, 1, 0, 256}};
  return shapes;
}

}  // namespace nvllm::kernels::testing
