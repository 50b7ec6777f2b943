// Norms, rotation and store against their plain definition, on whichever backend is linked.
#include "kernels/pointwise/testing/norm_rope_store_case.h"

namespace nvllm::kernels {
namespace {

using testing::check_against_reference;
using testing::Placed;
using testing::refusal;
using testing::same_bits;

template <typename T, typename Kv = T>
using Case = testing::NormRopeStoreCase<T, Kv>;

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
  call.slot_mapping = slot.view({1});
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
  good.slot_mapping = tensor(DType::i64, {3});
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
  CHECK(why([&](NormRopeStore& bad) { bad.slot_mapping = tensor(DType::i32, {3}); }) ==
        "norm_rope_store: slot_mapping");
  CHECK(why([](NormRopeStore& bad) { bad.slot_mapping.stride[0] = 2; }) ==
        "norm_rope_store: slot_mapping");
  CHECK(refusal(*backend, [&](Stream& stream) {
          NormRopeStore bad = good;
          bad.qkv.data = bad.qkv.as<char>() + 1;
          norm_rope_store(bad, stream);
        }).find("norm_rope_store: qkv lies at ") == 0);
}

}  // namespace
}  // namespace nvllm::kernels
