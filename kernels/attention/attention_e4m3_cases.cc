// Tests attention to a cache of E4m3 (device/e4m3.h) against its definition, on whichever backend
// is linked.
#include <cmath>

#include "device/e4m3.h"
#include "kernels/attention/testing/attention_case.h"
#include "testing/skip.h"

namespace nvllm::kernels::testing {
namespace {

template <typename T>
using Case = AttentionCase<T, E4m3>;

// Without scales, and with others for each head.
template <typename T>
void check_with_scales(Backend& backend, Case<T> c) {
  check_against_reference(backend, c);
  for (std::int64_t i = 0; i < 2 * c.shape.kv_heads; ++i) {
    c.kv_scales.push_back(0.25f + 0.3f * static_cast<float>(i % 5));
  }
  check_against_reference(backend, c);
}

TEST_CASE_TEMPLATE("attention to E4m3 is what its definition says", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(3);
  const std::int64_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 33};
  const std::int64_t head_dims[] = {64, 128, 32, 80, 96, 256, 16, 208, 64};
  int number = 0;
  for (int i = 0; i < 9; ++i) {
    // Decode, a few rows each, and more than a tile of rows.
    for (const int max_rows : {1, 5, static_cast<int>(10 + 130 / groups[i])}) {
      for (const std::int64_t block_size : {16, 1, 32, 0}) {
        if (nvllm::testing::kSanitized && number++ % 5 != 0) continue;
        AttentionShape shape =
            whole_groups(some_sequences(random, 2, max_rows, 90),
                         groups[i] > 4 ? 1 : 1 + random() % 3, groups[i], head_dims[i], block_size);
        CAPTURE(shape.group);
        CAPTURE(shape.head_dim);
        CAPTURE(max_rows);
        CAPTURE(block_size);
        check_with_scales(*backend, Case<T>::random(shape, random()));
      }
    }
  }
}

TEST_CASE_TEMPLATE("heads of E4m3 that begin and end inside groups", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  struct Split {
    std::int64_t heads, kv_heads, group, first_head;
  };
  for (const Split& split : {Split{4, 2, 3, 2}, {7, 2, 4, 1}, {1, 1, 8, 7}, {2, 3, 2, 1}}) {
    for (const std::int64_t rows : {1, 30}) {
      CAPTURE(split.heads);
      CAPTURE(rows);
      AttentionShape shape{{{rows, 40}, {1, 17}, {rows, rows}},
                           split.heads,
                           split.kv_heads,
                           64,
                           split.group,
                           split.first_head};
      check_with_scales(*backend, Case<T>::random(shape, 9));
    }
  }
}

TEST_CASE_TEMPLATE("E4m3: sequences of one token, without rows, without tokens", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 20}) {
    const AttentionShape shape =
        whole_groups({{1, 1}, {0, 50}, {rows, 64}, {0, 0}, {0, 1}, {rows, rows}}, 2, 3, 128);
    Case<T> got = Case<T>::random(shape, 5);
    check_with_scales(*backend, got);
    got.run(*backend);
    // The first row sees one token: its value, which every type has exactly, is the result.
    int wrong = 0;
    for (int i = 0; i < 128; ++i) wrong += to_float(got.out[i]) != to_float(got.v[i]);
    CHECK(wrong == 0);
  }
}

TEST_CASE_TEMPLATE("E4m3: every number but NaN is read exactly", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 70}) {
    // Each row attends to one token, so the results are its values.
    Case<T> c(whole_groups(std::vector<Sequence>(2, {rows, rows}), 1, 1, 128));
    for (std::size_t i = 0; i < c.v.size(); ++i) {
      const auto bits = static_cast<std::uint8_t>(i % 256);
      c.v[i].bits = (bits & 0x7f) == 0x7f ? 0 : bits;
    }
    c.visible.assign(2, 1);
    c.k.assign(c.k.size(), E4m3{});
    c.run(*backend);
    int wrong = 0;
    for (int i = 0; i < 128; ++i) wrong += to_float(c.out[i]) != to_float(c.v[i]);
    for (int i = 0; i < 128; ++i) {
      wrong += to_float(c.out[rows * 128 + i]) != to_float(c.v[rows * 128 + i]);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE_TEMPLATE("E4m3: long contexts, which several threads or blocks share", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t block_size : {16, 8, 64}) {
      // Under sanitizers this takes minutes.
      if (nvllm::testing::kSanitized && (head_dim != 64 || block_size != 16)) continue;
      CAPTURE(head_dim);
      CAPTURE(block_size);
      const auto shape = [&](std::vector<Sequence> sequences) {
        return whole_groups(std::move(sequences), 2, 2, head_dim, block_size);
      };
      check_with_scales(*backend, Case<T>::random(shape({{1, 2100}, {1, 3}, {2, 600}}), 1));
      check_with_scales(*backend, Case<T>::random(shape(std::vector<Sequence>(70, {1, 70})), 2));
      check_with_scales(*backend, Case<T>::random(shape({{1, 9000}}), 3));
    }
  }
}

TEST_CASE_TEMPLATE("E4m3: prompts of many tiles of rows and tokens", T, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() == DeviceKind::cpu) SKIP_TEST("tiles are of GPUs");
  GPU_SHAPES_OR_SKIP();
  std::mt19937 random(7);
  for (const std::int64_t head_dim : {64, 128, 256}) {
    for (const std::int64_t block_size : {16, 0, 3}) {
      for (const std::int64_t window : {0, 200}) {
        CAPTURE(head_dim);
        CAPTURE(block_size);
        CAPTURE(window);
        auto c =
            Case<T>::random(whole_groups({{300, 1300}, {33, 700}, {1, 2000}, {0, 40}, {260, 260}},
                                         1, 3, head_dim, block_size),
                            random());
        c.window = window;
        check_with_scales(*backend, c);
      }
    }
  }
}

TEST_CASE_TEMPLATE("E4m3: partial results, in float32", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 40}) {
    Case<T> c = Case<T>::random(whole_groups({{rows, 300}, {rows, 90}, {1, 20}}, 2, 4, 64), 8);
    c.visible = {300, 20, -3};
    c.as_float = true;
    c.q_gap = 64;
    check_with_scales(*backend, c);
  }
}

// In float16, in which the kernels take queries, these would be infinite or 0.
TEST_CASE("E4m3: queries of any size") {
  BACKEND_OR_SKIP(backend);
  for (const float size : {0x1p100f, 0x1p40f, 0x1p-40f, 0x1p-100f}) {
    for (const std::int64_t rows : {1, 40}) {
      CAPTURE(size);
      CAPTURE(rows);
      Case<Bf16> c = Case<Bf16>::random(whole_groups({{rows, 100}}, 1, 2, 128), 4);
      for (Bf16& q : c.q) q = from_float<Bf16>(to_float(q) * size);
      c.scale /= size;
      check_with_scales(*backend, c);
    }
  }
}

TEST_CASE_TEMPLATE("E4m3: a NaN in a query or a key makes its rows NaN", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 40}) {
    CAPTURE(rows);
    Case<T> c = Case<T>::random(whole_groups({{rows, 60}, {rows, 60}}, 2, 2, 64), 6);
    c.k[3 * 128 + 5].bits = 0x7f;  // token 3 of sequence 0, KV head 0
    c.q[(rows * 4 + 2) * 64] = from_float<T>(kNan);
    c.run(*backend);
    const auto nans = [&](std::int64_t head) {
      return std::count_if(c.out.begin() + head * 64, c.out.begin() + (head + 1) * 64,
                           [](T x) { return std::isnan(to_float(x)); });
    };
    CHECK(nans(0) == 64);
    CHECK(nans(1) == 64);
    CHECK(nans(2) == 0);
    CHECK(nans(rows * 4 + 1) == 0);
    CHECK(nans(rows * 4 + 2) == 64);
  }
}

TEST_CASE("attention refuses scales and heads of E4m3 that do not fit") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  Case<Bf16> c = Case<Bf16>::random(whole_groups({{1, 20}}, 2, 2, 64), 1);
  const auto why = [&](const auto& spoil) {
    std::string text;
    c.run(*backend, *stream, [&](Attention args) {
      spoil(args);
      try {
        attention(args, *stream);
      } catch (const Error& error) {
        text = error.what();
      }
    });
    return text;
  };
  CHECK(why([](Attention&) {}) == "");
  CHECK(why([](Attention& args) {
          args.kv_scales = TensorView(args.q.data, DType::f32, {2, 3});
        }) == "attention: kv_scales is float32 [2, 3]; it must be dense float32 [2, 2]");
  CHECK(why([](Attention& args) {
          args.kv_scales = TensorView(args.q.data, DType::bf16, {2, 2});
        }) == "attention: kv_scales is bfloat16 [2, 2]; it must be dense float32 [2, 2]");
  c = Case<Bf16>::random(whole_groups({{1, 20}}, 2, 2, 24), 1);
  CHECK(why([](Attention&) {}).find("E4M3; head_dim must be a multiple of 16") !=
        std::string::npos);
}

}  // namespace
}  // namespace nvllm::kernels::testing
