// NormRopeStoreCase: a call of norm_rope_store with its values on the host, and the tolerance of
// its results.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/pointwise/norm_rope_store.h"
#include "kernels/pointwise/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {

// How the cache lies: [blocks, block_size, kv_heads, head_dim] in this order, or heads before
// tokens; with `gap` elements between the parts.
struct CacheLayout {
  bool heads_first = false;
  std::int64_t gap = 0;
};

// One call: its tensors' values on the host. Kv: the type of the cache.
template <typename T, typename Kv = T>
struct NormRopeStoreCase {
  std::int64_t rows, heads, kv_heads, head_dim, block_size;
  CacheLayout layout;
  std::vector<T> qkv, q_norm, k_norm;  // norms: empty for none
  std::vector<Kv> keys, values;
  std::vector<float> scales;  // of E4m3; empty: none
  std::vector<float> cos_sin;
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> slots;
  float weight_offset = 0;
  bool norms_v = false, shares_kv = false;
  std::int64_t rotary;  // elements of a head that are rotated

  static constexpr std::int64_t kPositions = 50;

  NormRopeStoreCase(std::int64_t rows, std::int64_t heads, std::int64_t kv_heads,
                    std::int64_t head_dim, bool norm = true, CacheLayout layout = {},
                    std::int64_t block_size = 16)
      : rows(rows),
        heads(heads),
        kv_heads(kv_heads),
        head_dim(head_dim),
        block_size(block_size),
        layout(layout) {
    std::mt19937 random(static_cast<unsigned>(rows * 7 + heads * 5 + head_dim));
    qkv = normal_values<T>(rows * width(), random(), 0.3f, 2);
    if (norm) {
      q_norm = normal_values<T>(head_dim, random(), 1, 0.2f);
      k_norm = normal_values<T>(head_dim, random(), 1, 0.2f);
    }
    rotate(head_dim, random);
    // Slots in any order, each at most once, some rows without one.
    std::vector<std::int64_t> all(blocks() * block_size);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
    std::shuffle(all.begin(), all.end(), random);
    for (std::int64_t row = 0; row < rows; ++row) {
      positions.push_back(static_cast<std::int32_t>(random() % kPositions));
      slots.push_back(row % 5 == 3 ? -1 - static_cast<std::int64_t>(random() % 3) : all[row]);
    }
    keys.assign(cache_elements(), from_float<Kv>(-7));
    values.assign(cache_elements(), from_float<Kv>(-9));
  }

  // By random angles.
  void rotate(std::int64_t elements, std::mt19937& random) {
    rotary = elements;
    cos_sin.clear();
    for (std::int64_t position = 0; position < kPositions; ++position) {
      std::vector<float> angles(rotary / 2);
      for (float& angle : angles) angle = static_cast<float>(random() % 6283) * 1e-3f;
      for (const float angle : angles) cos_sin.push_back(std::cos(angle));
      for (const float angle : angles) cos_sin.push_back(std::sin(angle));
    }
  }

  std::int64_t blocks() const { return rows / block_size + 2; }
  std::int64_t width() const { return (heads + (shares_kv ? 0 : 2 * kv_heads)) * head_dim; }

  void take_q_alone() {
    shares_kv = true;
    qkv.resize(static_cast<std::size_t>(rows * width()));
  }

  // Offsets of the cache's parts.
  std::array<std::int64_t, 4> strides() const {
    const std::int64_t inner = head_dim + layout.gap;
    if (layout.heads_first) {
      const std::int64_t head = block_size * inner + layout.gap;
      return {kv_heads * head + layout.gap, inner, head, 1};
    }
    const std::int64_t token = kv_heads * inner + layout.gap;
    return {block_size * token + layout.gap, token, inner, 1};
  }
  std::int64_t cache_elements() const { return blocks() * strides()[0]; }

  NormRopeStore call(T* qkv, T* q_norm, T* k_norm, float* cos_sin, std::int32_t* positions,
                     std::int64_t* slots, Kv* keys, Kv* values, float* scales) const {
    NormRopeStore call;
    call.qkv = {qkv, dtype_of<T>, {rows, width()}};
    if (!this->q_norm.empty()) {
      call.q_norm = {q_norm, dtype_of<T>, {head_dim}};
      if (!shares_kv) call.k_norm = {k_norm, dtype_of<T>, {head_dim}};
    }
    call.cos_sin = {cos_sin, DType::f32, {kPositions, rotary}};
    call.positions = {positions, DType::i32, {rows}};
    call.slot_mapping = {slots, DType::i64, {rows}};
    call.kv.keys = {keys, dtype_of<Kv>, {blocks(), block_size, kv_heads, head_dim}};
    call.kv.values = {values, dtype_of<Kv>, {blocks(), block_size, kv_heads, head_dim}};
    if (!this->scales.empty()) call.kv_scales = {scales, DType::f32, {2, kv_heads}};
    call.kv.keys.stride = call.kv.values.stride = strides();
    call.heads = heads;
    call.weight_offset = weight_offset;
    call.norms_v = norms_v;
    call.shares_kv = shares_kv;
    call.history_is_visible = rows % 2 == 1;
    return call;
  }

  void run_reference() {
    norm_rope_store_reference(call(qkv.data(), q_norm.data(), k_norm.data(), cos_sin.data(),
                                   positions.data(), slots.data(), keys.data(), values.data(),
                                   scales.data()));
  }

  // On the backend. The tensors lie `shift` elements after an aligned address.
  void run(Backend& backend, std::int64_t shift = 0) {
    const auto stream = backend.create_stream();
    Placed qkv_there(backend, *stream, qkv, shift);
    Placed q_norm_there(backend, *stream, q_norm, shift);
    Placed k_norm_there(backend, *stream, k_norm, shift);
    Placed cos_sin_there(backend, *stream, cos_sin, shift);
    Placed positions_there(backend, *stream, positions, shift);
    Placed slots_there(backend, *stream, slots, shift);
    Placed keys_there(backend, *stream, keys, shift);
    Placed values_there(backend, *stream, values, shift);
    Placed scales_there(backend, *stream, scales, shift);
    norm_rope_store(call(qkv_there.data(), q_norm_there.data(), k_norm_there.data(),
                         cos_sin_there.data(), positions_there.data(), slots_there.data(),
                         keys_there.data(), values_there.data(), scales_there.data()),
                    *stream);
    qkv = qkv_there.fetch();
    keys = keys_there.fetch();
    values = values_there.fetch();
  }
};

// The number of a head's results that are further from the reference than rounding explains: the
// sum of squares has chains of head_dim / 8 additions at most, whose relative error a square root
// halves, then come a few roundings, all relative to the length of the pair that was rotated.
template <typename T>
int count_wrong_rotated(const T* got, const T* right, std::int64_t head_dim, std::int64_t rotary) {
  const float relative = (static_cast<float>(head_dim) / 16 + 16) * 0x1p-24f;
  const std::int64_t half = rotary / 2;
  int wrong = 0;
  for (std::int64_t i = rotary; i < head_dim; ++i) {
    wrong += !near(got[i], right[i], std::fabs(to_float(right[i])) * relative);
  }
  for (std::int64_t i = 0; i < half; ++i) {
    const float length = std::hypot(to_float(right[i]), to_float(right[half + i]));
    const float off = std::isfinite(length) ? length * relative : 0.0f;
    wrong += !near(got[i], right[i], off);
    wrong += !near(got[half + i], right[half + i], off);
  }
  return wrong;
}

template <typename T, typename Kv>
void check_same(const NormRopeStoreCase<T, Kv>& got, const NormRopeStoreCase<T, Kv>& right) {
  // All of qkv but q, and all of the values, are copies.
  int wrong_q = 0, wrong_keys = 0, changed = 0;
  for (std::int64_t row = 0; row < got.rows; ++row) {
    for (std::int64_t i = 0; i < got.width(); i += got.head_dim) {
      const std::int64_t at = row * got.width() + i;
      if (i < got.heads * got.head_dim) {
        wrong_q += count_wrong_rotated(&got.qkv[at], &right.qkv[at], got.head_dim, got.rotary);
      } else {
        changed += std::memcmp(&got.qkv[at], &right.qkv[at], got.head_dim * sizeof(T)) != 0;
      }
    }
  }
  CHECK(wrong_q == 0);
  CHECK(changed == 0);
  if (got.norms_v) {
    int wrong_values = 0;  // without gaps, all are heads
    for (std::size_t i = 0; i < got.values.size(); i += static_cast<std::size_t>(got.head_dim)) {
      wrong_values += count_wrong_rotated(&got.values[i], &right.values[i], got.head_dim, 0);
    }
    CHECK(wrong_values == 0);
  } else {
    CHECK(same_bits(got.values, right.values));
  }
  // What is not a key of one of the rows is as it was, so equal in both.
  std::vector<Kv> rest = got.keys, expected_rest = right.keys;
  const auto stride = got.strides();
  for (const std::int64_t slot : got.slots) {
    for (std::int64_t head = 0; slot >= 0 && head < got.kv_heads; ++head) {
      const std::int64_t at =
          slot / got.block_size * stride[0] + slot % got.block_size * stride[1] + head * stride[2];
      wrong_keys += count_wrong_rotated(&got.keys[at], &right.keys[at], got.head_dim, got.rotary);
      std::fill_n(&rest[at], got.head_dim, Kv{});
      std::fill_n(&expected_rest[at], got.head_dim, Kv{});
    }
  }
  CHECK(wrong_keys == 0);
  CHECK(same_bits(rest, expected_rest));
}

template <typename T, typename Kv>
void check_against_reference(Backend& backend, const NormRopeStoreCase<T, Kv>& wanted_here,
                             std::int64_t shift = 0) {
  CAPTURE(wanted_here.rows);
  CAPTURE(wanted_here.heads);
  CAPTURE(wanted_here.kv_heads);
  CAPTURE(wanted_here.head_dim);
  CAPTURE(shift);
  NormRopeStoreCase<T, Kv> got = wanted_here, right = wanted_here;
  got.run(backend, shift);
  right.run_reference();
  check_same(got, right);
}

}  // namespace nvllm::kernels::testing
