// Norms, rotation and store against their plain definition, on whichever backend is linked.
#include <algorithm>
#include <array>

#include "kernels/pointwise/norm_rope_store.h"
#include "kernels/pointwise/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Placed;
using testing::refusal;
using testing::same_bits;

// How the cache lies: [blocks, block_size, kv_heads, head_dim] in this order, or heads before
// tokens; with so many elements between the parts.
struct Layout {
  bool heads_first = false;
  std::int64_t gap = 0;
};

// One call: its tensors' values on the host. Kv: the type of the cache.
template <typename T, typename Kv = T>
struct Case {
  std::int64_t rows, heads, kv_heads, head_dim, block_size;
  Layout layout;
  std::vector<T> qkv, q_norm, k_norm;  // norms: empty for none
  std::vector<Kv> keys, values;
  std::vector<float> scales;  // of E4m3; empty: none
  std::vector<float> cos_sin;
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> slots;
  float weight_offset = 0;
  bool norms_v = false, q_alone = false;
  std::int64_t rotary;  // elements of a head that are rotated

  static constexpr std::int64_t kPositions = 50;

  Case(std::int64_t rows, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
       bool norm = true, Layout layout = {}, std::int64_t block_size = 16)
      : rows(rows),
        heads(heads),
        kv_heads(kv_heads),
        head_dim(head_dim),
        block_size(block_size),
        layout(layout) {
    std::mt19937 random(static_cast<unsigned>(rows * 7 + heads * 5 + head_dim));
    qkv = testing::normal_values<T>(rows * width(), random(), 0.3f, 2);
    if (norm) {
      q_norm = testing::normal_values<T>(head_dim, random(), 1, 0.2f);
      k_norm = testing::normal_values<T>(head_dim, random(), 1, 0.2f);
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
  std::int64_t width() const { return (heads + (q_alone ? 0 : 2 * kv_heads)) * head_dim; }

  void take_q_alone() {
    q_alone = true;
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
      if (!q_alone) call.k_norm = {k_norm, dtype_of<T>, {head_dim}};
    }
    call.cos_sin = {cos_sin, DType::f32, {kPositions, rotary}};
    call.positions = {positions, DType::i32, {rows}};
    call.slots = {slots, DType::i64, {rows}};
    call.kv.keys = {keys, dtype_of<Kv>, {blocks(), block_size, kv_heads, head_dim}};
    call.kv.values = {values, dtype_of<Kv>, {blocks(), block_size, kv_heads, head_dim}};
    if (!this->scales.empty()) call.kv_scales = {scales, DType::f32, {2, kv_heads}};
    call.kv.keys.stride = call.kv.values.stride = strides();
    call.heads = heads;
    call.weight_offset = weight_offset;
    call.norms_v = norms_v;
    call.q_alone = q_alone;
    call.only_rows_are_new = rows % 2 == 1;
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

// Of heads that lie `stride` apart, how many results are further from the reference than rounding
// explains: the sum of squares has chains of head_dim / 8 additions at most, whose relative error a
// square root halves, then come a few roundings, all relative to the length of the pair that was
// rotated.
template <typename T>
int count_wrong(const T* got, const T* right, std::int64_t head_dim, std::int64_t rotary) {
  const float relative = (static_cast<float>(head_dim) / 16 + 16) * 0x1p-24f;
  const std::int64_t half = rotary / 2;
  int wrong = 0;
  for (std::int64_t i = rotary; i < head_dim; ++i) {
    wrong += !testing::near(got[i], right[i], std::fabs(to_float(right[i])) * relative);
  }
  for (std::int64_t i = 0; i < half; ++i) {
    const float length = std::hypot(to_float(right[i]), to_float(right[half + i]));
    const float off = std::isfinite(length) ? length * relative : 0.0f;
    wrong += !testing::near(got[i], right[i], off);
    wrong += !testing::near(got[half + i], right[half + i], off);
  }
  return wrong;
}

template <typename T, typename Kv>
void check_same(const Case<T, Kv>& got, const Case<T, Kv>& right) {
  // All of qkv but q, and all of the values, are copies.
  int wrong_q = 0, wrong_keys = 0, changed = 0;
  for (std::int64_t row = 0; row < got.rows; ++row) {
    for (std::int64_t i = 0; i < got.width(); i += got.head_dim) {
      const std::int64_t at = row * got.width() + i;
      if (i < got.heads * got.head_dim) {
        wrong_q += count_wrong(&got.qkv[at], &right.qkv[at], got.head_dim, got.rotary);
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
      wrong_values += count_wrong(&got.values[i], &right.values[i], got.head_dim, 0);
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
      wrong_keys += count_wrong(&got.keys[at], &right.keys[at], got.head_dim, got.rotary);
      std::fill_n(&rest[at], got.head_dim, Kv{});
      std::fill_n(&expected_rest[at], got.head_dim, Kv{});
    }
  }
  CHECK(wrong_keys == 0);
  CHECK(same_bits(rest, expected_rest));
}

template <typename T, typename Kv>
void check_against_reference(Backend& backend, const Case<T, Kv>& wanted_here,
                             std::int64_t shift = 0) {
  CAPTURE(wanted_here.rows);
  CAPTURE(wanted_here.heads);
  CAPTURE(wanted_here.kv_heads);
  CAPTURE(wanted_here.head_dim);
  CAPTURE(shift);
  Case<T, Kv> got = wanted_here, right = wanted_here;
  got.run(backend, shift);
  right.run_reference();
  check_same(got, right);
}

TEST_CASE_TEMPLATE("norm_rope_store is what its definition says, for all shapes", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][4] = {
      {1, 32, 8, 128}, {0, 4, 2, 64},    {7, 9, 3, 64},    {3, 0, 2, 64},     {4, 3, 0, 64},
      {2, 0, 0, 64},   {5, 2, 1, 2},     {4, 3, 1, 6},     {3, 14, 2, 80},    {2, 4, 4, 256},
      {600, 5, 1, 16}, {33, 16, 8, 128}, {200, 15, 3, 96}, {6, 3, 2, 254},    {17, 1, 1, 16},
      {9, 7, 1, 100},  {280, 11, 2, 48}, {5, 4, 2, 512},   {300, 16, 4, 512}, {7, 3, 2, 510}};
  for (const auto& shape : kShapes) {
    for (const bool norm : {true, false}) {
      for (const std::int64_t shift : {0, 1}) {
        CAPTURE(norm);
        check_against_reference(
            *backend, Case<T>(shape[0], shape[1], shape[2], shape[3], norm, {}, 17), shift);
      }
    }
  }
}

TEST_CASE_TEMPLATE("the norms' weights less 1 are taken with that 1", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][4] = {{3, 4, 1, 32}, {5, 8, 4, 256}, {600, 5, 1, 16},
                                         {7, 9, 3, 64}, {6, 3, 2, 254}, {5, 2, 1, 2}};
  for (const auto& shape : kShapes) {
    for (const std::int64_t shift : {0, 1}) {
      Case<T> wanted(shape[0], shape[1], shape[2], shape[3]);
      for (std::vector<T>* norm : {&wanted.q_norm, &wanted.k_norm}) {
        for (T& weight : *norm) weight = from_float<T>((to_float(weight) - 1) * 0.1f);
      }
      wanted.weight_offset = 1;
      check_against_reference(*backend, wanted, shift);
    }
  }
}

TEST_CASE_TEMPLATE("what is behind the rotated part of a head is normed alone", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(3);
  for (const std::int64_t rotary : {2, 8, 16, 20, 62}) {
    for (const bool norm : {true, false}) {
      CAPTURE(rotary);
      Case<T> wanted(9, 4, 2, 64, norm);
      wanted.rotate(rotary, random);
      check_against_reference(*backend, wanted);
      Case<T, E4m3> in_e4m3(9, 4, 2, 64, norm);
      in_e4m3.rotate(rotary, random);
      check_against_reference(*backend, in_e4m3);
    }
  }
  // Lanes of GPUs take several heads.
  Case<T> many(300, 16, 2, 256);
  many.rotate(64, random);
  check_against_reference(*backend, many);
}

// How many bytes of E4m3 differ.
int count_different(const std::vector<E4m3>& a, const std::vector<E4m3>& b) {
  int different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different += a[i].bits != b[i].bits;
  return different;
}

template <typename T>
void check_norms_of_values(Backend& backend, std::int64_t rows, std::int64_t head_dim, bool norm) {
  CAPTURE(rows);
  CAPTURE(head_dim);
  CAPTURE(norm);
  Case<T> wanted(rows, 4, 2, head_dim, norm);
  wanted.norms_v = true;
  check_against_reference(backend, wanted);
  Case<T> other = wanted, normed = wanted;
  other.norms_v = false;
  other.run(backend);
  normed.run(backend);
  CHECK_FALSE(same_bits(other.values, normed.values));
  Case<T, E4m3> in_e4m3(rows, 4, 2, head_dim, norm);
  in_e4m3.norms_v = true;
  in_e4m3.scales = {1, 2, 0.5f, 0.25f};
  Case<T, E4m3> got = in_e4m3, right = in_e4m3;
  got.run(backend);
  right.run_reference();
  CHECK(count_different(got.values, right.values) <= 2 + rows * 2 * head_dim / 2000);
  CHECK(count_different(got.keys, right.keys) <= 2 + rows * 2 * head_dim / 2000);
}

TEST_CASE_TEMPLATE("values are normed without weights, where that is wanted", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t head_dim : {64, 6, 100, 256, 512}) {
    check_norms_of_values<T>(*backend, 20, head_dim, true);
  }
  check_norms_of_values<T>(*backend, 20, 64, false);
  check_norms_of_values<T>(*backend, 600, 128, true);  // lanes of GPUs take several heads
}

TEST_CASE_TEMPLATE("q alone is normed and rotated, and nothing is stored", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const bool norm : {true, false}) {
    for (const std::int64_t rows : {20, 1100}) {
      for (const std::int64_t head_dim : {64, 100, 512}) {
        CAPTURE(norm);
        CAPTURE(rows);
        CAPTURE(head_dim);
        Case<T> wanted(rows, 4, 2, head_dim, norm);
        wanted.take_q_alone();
        wanted.norms_v = rows == 20;  // which changes nothing
        check_against_reference(*backend, wanted);
        Case<T> got = wanted;
        got.run(*backend);
        CHECK(same_bits(got.keys, wanted.keys));
        CHECK(same_bits(got.values, wanted.values));
        Case<T, E4m3> in_e4m3(rows, 4, 2, head_dim, norm);
        in_e4m3.take_q_alone();
        check_against_reference(*backend, in_e4m3);
      }
    }
  }
}

TEST_CASE_TEMPLATE("norm_rope_store finds its way in caches of any strides", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  for (const bool heads_first : {false, true}) {
    for (const std::int64_t gap : {0, 3, 64}) {
      CAPTURE(heads_first);
      CAPTURE(gap);
      check_against_reference(*backend, Case<T>(20, 4, 2, 64, true, {heads_first, gap}));
      check_against_reference(*backend, Case<T>(280, 9, 3, 32, true, {heads_first, gap}));
    }
  }
}

// A key's rounding may fall to either side where float32's own roundings move it across the middle
// between two numbers, so to one of some thousands.
TEST_CASE_TEMPLATE("norm_rope_store keeps keys and values as E4m3 of their scales", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  constexpr std::int64_t kShapes[][4] = {
      {1, 32, 8, 128}, {7, 9, 3, 64},  {3, 0, 2, 64},   {4, 3, 0, 64},    {5, 2, 1, 16},
      {3, 14, 2, 80},  {2, 4, 4, 256}, {600, 5, 1, 16}, {33, 16, 8, 128}, {9, 7, 1, 100}};
  for (const auto& shape : kShapes) {
    for (const bool norm : {true, false}) {
      for (const std::int64_t shift : {0, 1}) {
        CAPTURE(norm);
        Case<T, E4m3> wanted_here(shape[0], shape[1], shape[2], shape[3], norm, {}, 17);
        check_against_reference(*backend, wanted_here, shift);
        for (std::int64_t i = 0; i < 2 * shape[2]; ++i) {
          wanted_here.scales.push_back(
              std::ldexp(1 + 0.3f * static_cast<float>(i % 3), static_cast<int>(i % 7) - 4));
        }
        check_against_reference(*backend, wanted_here, shift);
        Case<T, E4m3> got = wanted_here, right = wanted_here;
        got.run(*backend, shift);
        right.run_reference();
        const auto stored = shape[0] * shape[2] * shape[3];
        CHECK(count_different(got.keys, right.keys) <= 2 + stored / 2000);
      }
    }
  }
}

TEST_CASE("norm_rope_store keeps what is too large for E4m3 as 448, and NaN as NaN") {
  BACKEND_OR_SKIP(backend);
  Case<Bf16, E4m3> c(1, 0, 1, 64, false, {}, 16);
  c.slots = {0};
  c.positions = {0};
  for (int i = 0; i < 32; ++i) c.cos_sin[i] = 1, c.cos_sin[32 + i] = 0;
  c.qkv.assign(128, from_float<Bf16>(500));
  c.qkv[1] = from_float<Bf16>(-1e30f);
  c.qkv[2] = c.qkv[66] = from_float<Bf16>(testing::kNan);
  c.qkv[3] = c.qkv[67] = from_float<Bf16>(3.0f);
  c.qkv[68] = from_float<Bf16>(testing::kInfinity);
  c.run(*backend);
  CHECK(to_float(c.keys[0]) == 448);
  CHECK(to_float(c.keys[1]) == -448);
  CHECK(std::isnan(to_float(c.keys[2])));
  CHECK(to_float(c.keys[3]) == 3);
  CHECK(to_float(c.values[0]) == 448);
  CHECK(std::isnan(to_float(c.values[2])));
  CHECK(to_float(c.values[3]) == 3);
  CHECK(to_float(c.values[4]) == 448);
}

TEST_CASE("the bits of a head depend neither on the other heads nor on the other rows") {
  BACKEND_OR_SKIP(backend);
  const Case<Bf16> wanted_here(300, 14, 2, 128);
  Case<Bf16> all = wanted_here;
  all.run(*backend);
  for (const std::int64_t row : {0, 100, 299}) {
    Case<Bf16> alone(1, 1, 0, 128);
    alone.q_norm = wanted_here.q_norm;
    alone.cos_sin = wanted_here.cos_sin;
    alone.positions = {wanted_here.positions[row]};
    const auto head = row * wanted_here.width() + 11 * 128;
    alone.qkv.assign(wanted_here.qkv.begin() + head, wanted_here.qkv.begin() + head + 128);
    alone.run(*backend);
    CHECK(same_bits(alone.qkv, {all.qkv.begin() + head, all.qkv.begin() + head + 128}));
  }
}

TEST_CASE_TEMPLATE("a NaN spoils its head and no other", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  Case<T> wanted_here(2, 3, 2, 64);
  const auto row = wanted_here.width();
  wanted_here.qkv[row + 64 + 5] = from_float<T>(testing::kNan);       // q, head 1
  wanted_here.qkv[row + 3 * 64 + 60] = from_float<T>(testing::kNan);  // k, head 0
  wanted_here.qkv[row + 6 * 64 + 1] = from_float<T>(testing::kNan);   // v, head 1
  Case<T> got = wanted_here;
  got.run(*backend);
  const auto nans = [](const std::vector<T>& values) {
    int count = 0;
    for (const T value : values) count += std::isnan(to_float(value));
    return count;
  };
  CHECK(nans({got.qkv.begin(), got.qkv.begin() + row + 3 * 64}) == 64);
  CHECK(nans(got.keys) == 64);
  CHECK(nans(got.values) == 1);
  check_against_reference(*backend, wanted_here);
}

TEST_CASE_TEMPLATE("norm_rope_store: infinite, huge and tiny values do as the definition", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const float value : {testing::kInfinity, -testing::kInfinity, testing::Limits<T>::kMax,
                            1e18f, 60000.0f, 1e-4f, 1e-12f, 1e-25f, 1e-42f, 0.0f}) {
    CAPTURE(value);
    Case<T> wanted_here(2, 3, 2, 64);
    for (int i = 0; i < 64; ++i) {
      wanted_here.qkv[i] = from_float<T>(i % 2 == 0 ? value : -value);
      wanted_here.qkv[3 * 64 + i] = from_float<T>(value);
    }
    check_against_reference(*backend, wanted_here);
  }
}

TEST_CASE("norm_rope_store reads positions and slots when a graph runs") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  Placed<float> qkv(*backend, *stream, {1, 2, 3, 4, 5, 6});
  Placed<float> cos_sin(*backend, *stream, {1, 0, 0, 1, -1, 0});  // turns by 0, 90 and 180 degrees
  Placed<float> keys(*backend, *stream, std::vector<float>(8));
  Placed<float> values(*backend, *stream, std::vector<float>(8));
  Placed<std::int32_t> position(*backend, *stream, {0});
  Placed<std::int64_t> slot(*backend, *stream, {0});
  Buffer host = backend->allocate(MemoryKind::pinned, 16, "test");
  auto* next_slot = static_cast<std::int64_t*>(host.data());
  auto* next_position = reinterpret_cast<std::int32_t*>(next_slot + 1);
  NormRopeStore call;
  call.qkv = qkv.view({1, 6});
  call.cos_sin = cos_sin.view({3, 2});
  call.positions = position.view({1});
  call.slots = slot.view({1});
  call.kv.keys = keys.view({2, 2, 1, 2});
  call.kv.values = values.view({2, 2, 1, 2});
  call.heads = 1;
  const auto graph = backend->capture(*stream, [&] {
    backend->copy(slot.data(), next_slot, sizeof(std::int64_t), *stream);
    backend->copy(position.data(), next_position, sizeof(std::int32_t), *stream);
    norm_rope_store(call, *stream);
  });
  *next_slot = 2, *next_position = 1;
  graph->launch(*stream);
  CHECK(qkv.fetch() == std::vector<float>{-2, 1, 3, 4, 5, 6});
  *next_slot = 1, *next_position = 2;
  graph->launch(*stream);
  CHECK(qkv.fetch() == std::vector<float>{2, -1, 3, 4, 5, 6});
  CHECK(keys.fetch() == std::vector<float>{0, 0, -3, -4, -4, 3, 0, 0});
  CHECK(values.fetch() == std::vector<float>{0, 0, 5, 6, 5, 6, 0, 0});
}

TEST_CASE("norm_rope_store refuses arguments that do not fit, by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 20, "test");
  const auto stream = backend->create_stream();
  backend->fill(memory.data(), 0, memory.bytes(), *stream);
  stream->synchronize();
  const auto tensor = [&](DType type, std::initializer_list<std::int64_t> shape) {
    return TensorView(memory.data(), type, shape);
  };
  NormRopeStore good;
  good.heads = 2;
  good.qkv = tensor(DType::bf16, {3, 4 * 16});
  good.q_norm = good.k_norm = tensor(DType::bf16, {16});
  good.cos_sin = tensor(DType::f32, {9, 16});
  good.positions = tensor(DType::i32, {3});
  good.slots = tensor(DType::i64, {3});
  good.kv.keys = good.kv.values = tensor(DType::bf16, {4, 8, 1, 16});
  const auto why = [&](const auto& spoil) {
    NormRopeStore bad = good;
    spoil(bad);
    const std::string message =
        refusal(*backend, [&](Stream& stream) { norm_rope_store(bad, stream); });
    return message.substr(0, message.find(" is "));
  };
  CHECK(why([](NormRopeStore&) {}) == "");
  CHECK(why([](NormRopeStore& bad) { bad.kv.keys.stride[3] = 2; }) == "norm_rope_store: keys");
  CHECK(why([](NormRopeStore& bad) {
          bad.kv.values.dtype = DType::f16;
        }).find("norm_rope_store: values are float16 [4, 8, 1, 16]") == 0);
  CHECK(why([&](NormRopeStore& bad) {
          bad.kv.keys = bad.kv.values = tensor(DType::bf16, {4, 8, 1, 15});
        }) == "norm_rope_store: keys");
  CHECK(why([&](NormRopeStore& bad) {
          bad.kv.keys = bad.kv.values = tensor(DType::bf16, {4, 8, 1, 514});
        }) == "norm_rope_store: keys");
  CHECK(why([](NormRopeStore& bad) { bad.heads = -1; }) == "norm_rope_store: heads");
  CHECK(why([&](NormRopeStore& bad) {
          bad.kv_scales = tensor(DType::f32, {2, 1});
        }).find("norm_rope_store: kv_scales are given, but keys are bfloat16") == 0);
  CHECK(why([&](NormRopeStore& bad) {
          bad.kv.keys = bad.kv.values = tensor(DType::u8, {4, 8, 1, 16});
          bad.kv_scales = tensor(DType::f32, {2, 2});
        }) == "norm_rope_store: kv_scales");
  CHECK(why([](NormRopeStore& bad) { bad.heads = 3; }) == "norm_rope_store: qkv");
  CHECK(why([](NormRopeStore& bad) { bad.qkv.stride[0] = 80; }) == "norm_rope_store: qkv");
  CHECK(why([](NormRopeStore& bad) { bad.qkv.dtype = DType::f16; }) == "norm_rope_store: qkv");
  CHECK(why([&](NormRopeStore& bad) { bad.q_norm = tensor(DType::bf16, {15}); }) ==
        "norm_rope_store: q_norm");
  CHECK(why([](NormRopeStore& bad) { bad.k_norm.stride[0] = 2; }) == "norm_rope_store: k_norm");
  CHECK(why([](NormRopeStore& bad) { bad.k_norm = {}; }) == "norm_rope_store: only q_norm");
  CHECK(why([&](NormRopeStore& bad) {
          bad.cos_sin = tensor(DType::bf16, {9, 16});
        }) == "norm_rope_store: cos_sin");
  CHECK(why([&](NormRopeStore& bad) {
          bad.cos_sin = tensor(DType::f32, {9, 18});
        }) == "norm_rope_store: cos_sin");
  CHECK(why([&](NormRopeStore& bad) { bad.positions = tensor(DType::i64, {3}); }) ==
        "norm_rope_store: positions");
  CHECK(why([&](NormRopeStore& bad) { bad.positions = tensor(DType::i32, {4}); }) ==
        "norm_rope_store: positions");
  CHECK(why([&](NormRopeStore& bad) { bad.slots = tensor(DType::i32, {3}); }) ==
        "norm_rope_store: slots");
  CHECK(why([](NormRopeStore& bad) { bad.slots.stride[0] = 2; }) == "norm_rope_store: slots");
  CHECK(refusal(*backend, [&](Stream& stream) {
          NormRopeStore bad = good;
          bad.qkv.data = bad.qkv.as<char>() + 1;
          norm_rope_store(bad, stream);
        }).find("norm_rope_store: qkv lies at ") == 0);
}

}  // namespace
}  // namespace nvllm::kernels
