// Tests the combination of partial attention results against its definition, on whichever backend
// is linked.
#include "kernels/attention/attention.h"
#include "kernels/attention/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::kInfinity;
using testing::kNan;
using testing::normal_values;
using testing::Placed;
using testing::same_bits;

struct Shape {
  std::int64_t rows, heads, head_dim;
  std::int64_t elements() const { return rows * heads * head_dim; }
};

// Parts in float32 or Part, results in Out.
template <typename Part, typename Out>
struct Case {
  Shape shape;
  std::vector<std::vector<Part>> parts;
  std::vector<std::vector<float>> part_lse;
  std::vector<Out> out;
  std::vector<float> lse;

  // Parts are as far apart as they are in attention; some count nothing, and hold NaN.
  static Case random(const Shape& shape, int count, unsigned seed) {
    Case c{shape, {}, {}, {}, {}};
    std::mt19937 bits(seed);
    for (int i = 0; i < count; ++i) {
      c.parts.push_back(normal_values<Part>(shape.elements(), bits()));
      c.part_lse.push_back(normal_values<float>(shape.rows * shape.heads, bits(), 3, 4));
      for (std::size_t head = 0; head < c.part_lse[i].size(); ++head) {
        if (bits() % 4 != 0) continue;
        c.part_lse[i][head] = -kInfinity;
        std::fill_n(c.parts[i].begin() + head * shape.head_dim, shape.head_dim,
                    from_float<Part>(kNan));
      }
    }
    return c;
  }

  void run(Backend& backend, bool reference = false) {
    const auto stream = backend.create_stream();
    out.assign(shape.elements(), from_float<Out>(-77));
    lse.assign(shape.rows * shape.heads, -77);
    Placed out_there(backend, *stream, out);
    Placed lse_there(backend, *stream, lse);
    std::vector<std::unique_ptr<Placed<Part>>> parts_there;
    std::vector<std::unique_ptr<Placed<float>>> lses_there;
    CombineAttention args;
    args.out = out_there.view({shape.rows, shape.heads, shape.head_dim});
    args.lse = lse_there.view({shape.rows, shape.heads});
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts_there.push_back(std::make_unique<Placed<Part>>(backend, *stream, parts[i]));
      lses_there.push_back(std::make_unique<Placed<float>>(backend, *stream, part_lse[i]));
      args.parts[args.count++] = {parts_there[i]->view({shape.rows, shape.heads, shape.head_dim}),
                                  lses_there[i]->view({shape.rows, shape.heads})};
    }
    if (reference) {
      stream->synchronize();
      combine_attention_reference(args);
    } else {
      combine_attention(args, *stream);
    }
    out = out_there.fetch();
    lse = lse_there.fetch();
  }
};

// A weight is off by the roundings of its exponent, which is below 40 here, and a few more; a
// result is an average of values below 6, with at most 8 of them.
template <typename Part, typename Out>
int count_wrong(const Case<Part, Out>& got, const Case<Part, Out>& expected) {
  constexpr float kOff = (40 + 16) * 0x1p-24f;
  int wrong = 0;
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    wrong += !testing::near(got.out[i], expected.out[i], 6 * kOff);
  }
  for (std::size_t i = 0; i < got.lse.size(); ++i) {
    wrong += !testing::near(got.lse[i], expected.lse[i], kOff);
  }
  return wrong;
}

template <typename Part, typename Out>
void check_case(Backend& backend, const Case<Part, Out>& input) {
  const auto cpu = create_backend(DeviceKind::cpu);
  Case<Part, Out> got = input, expected = input;
  got.run(backend);
  expected.run(*cpu, true);
  CHECK(count_wrong(got, expected) == 0);
}

TEST_CASE_TEMPLATE("combined parts are what the definition says", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(3);
  for (const Shape& shape :
       {Shape{1, 1, 8}, {3, 2, 64}, {40, 9, 128}, {7, 3, 200}, {2, 5, 256}, {3, 2, 512}}) {
    for (const int count : {1, 2, 3, 8}) {
      CAPTURE(shape.head_dim);
      CAPTURE(count);
      check_case(*backend, Case<T, T>::random(shape, count, random()));
      check_case(*backend, Case<float, T>::random(shape, count, random()));
      check_case(*backend, Case<T, float>::random(shape, count, random()));
    }
  }
}

TEST_CASE("one part alone keeps its bits") {
  BACKEND_OR_SKIP(backend);
  auto c = Case<float, float>::random({9, 4, 64}, 1, 5);
  c.part_lse[0].assign(36, 2.5f);
  c.parts[0] = normal_values<float>(c.shape.elements(), 6);
  c.run(*backend);
  CHECK(same_bits(c.out, c.parts[0]));
  CHECK(same_bits(c.lse, c.part_lse[0]));
}

TEST_CASE("without a part that counts the result is 0, its lse -infinity") {
  BACKEND_OR_SKIP(backend);
  auto c = Case<float, Bf16>::random({2, 3, 64}, 2, 7);
  for (auto& lse : c.part_lse) lse.assign(6, -kInfinity);
  for (auto& part : c.parts) part.assign(part.size(), kNan);
  c.run(*backend);
  CHECK(std::count_if(c.out.begin(), c.out.end(), [](Bf16 x) { return to_float(x) == 0; }) ==
        2 * 3 * 64);
  CHECK(std::count(c.lse.begin(), c.lse.end(), -kInfinity) == 6);
}

TEST_CASE("accumulators grow in place, part by part") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Shape shape{5, 3, 128};
  auto all = Case<float, float>::random(shape, 4, 8);
  Placed<float> sum(*backend, *stream, all.parts[0]), sum_lse(*backend, *stream, all.part_lse[0]);
  const auto view = [&](const Placed<float>& values) {
    return values.view({shape.rows, shape.heads, shape.head_dim});
  };
  const auto lse_view = [&](const Placed<float>& values) {
    return values.view({shape.rows, shape.heads});
  };
  for (int i = 1; i < 4; ++i) {
    const Placed<float> part(*backend, *stream, all.parts[i]);
    const Placed<float> part_lse(*backend, *stream, all.part_lse[i]);
    CombineAttention args;
    args.out = view(sum), args.lse = lse_view(sum_lse);
    args.parts[0] = {view(sum), lse_view(sum_lse)};
    args.parts[1] = {view(part), lse_view(part_lse)};
    args.count = 2;
    combine_attention(args, *stream);
    stream->synchronize();
  }
  Case<float, float> got = all;
  got.out = sum.fetch();
  got.lse = sum_lse.fetch();
  all.run(*create_backend(DeviceKind::cpu), true);
  CHECK(count_wrong(got, all) == 0);
}

TEST_CASE("a NaN or an infinite lse spoils its head and no other") {
  BACKEND_OR_SKIP(backend);
  for (const float bad : {kNan, kInfinity}) {
    auto c = Case<float, float>::random({2, 2, 64}, 2, 9);
    for (auto& lse : c.part_lse) lse.assign(4, 1.0f);
    for (auto& part : c.parts) part.assign(part.size(), 0.5f);
    c.part_lse[1][2] = bad;
    c.run(*backend);
    CHECK(std::count_if(c.out.begin(), c.out.end(), [](float x) { return std::isnan(x); }) == 64);
    CHECK(std::isnan(c.out[2 * 64]));
  }
}

TEST_CASE("no rows: nothing happens") {
  BACKEND_OR_SKIP(backend);
  auto c = Case<float, float>::random({0, 4, 64}, 2, 1);
  c.run(*backend);
  CHECK(c.out.empty());
}

TEST_CASE("combine_attention refuses what does not fit by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 16, "test");
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::f32) {
    return TensorView(memory.data(), type, shape);
  };
  const auto check = [&](const std::string& expected, auto&& spoil) {
    CombineAttention args;
    args.out = tensor({2, 3, 64});
    args.lse = tensor({2, 3});
    args.parts[0] = {args.out, args.lse};
    args.count = 1;
    spoil(args);
    const std::string got =
        testing::refusal(*backend, [&](Stream& stream) { combine_attention(args, stream); });
    CAPTURE(got);
    CHECK(got.find("combine_attention: " + expected) == 0);
  };
  check("count is 0", [](CombineAttention& a) { a.count = 0; });
  check("count is 9", [](CombineAttention& a) { a.count = 9; });
  check("out is float32 [2, 3, 60]; head_dim must", [&](CombineAttention& a) {
    a.out = tensor({2, 3, 60});
  });
  check("a part's lse is bfloat16 [2, 3]", [&](CombineAttention& a) {
    a.parts[0].lse = tensor({2, 3}, DType::bf16);
  });
  check("a part's out is float32 [2, 4, 64]", [&](CombineAttention& a) {
    a.parts[0].out = tensor({2, 4, 64});
  });
  check("out is bfloat16 [2, 3, 64] in the place of a part", [&](CombineAttention& a) {
    a.out = tensor({2, 3, 64}, DType::bf16);
  });
}

}  // namespace
}  // namespace nvllm::kernels
