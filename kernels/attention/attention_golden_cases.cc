// Tests attention against golden numbers (tests/data/golden-layers), and its error texts, on
// whichever backend is linked.
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "kernels/attention/testing/attention_case.h"
#include "testing/golden.h"

namespace nvllm::kernels::testing {
namespace {

// Values that are exact in bfloat16, as T.
template <typename T>
std::vector<T> values_of(const nvllm::testing::GoldenTensor& tensor) {
  std::vector<T> values;
  for (const float value : tensor.values) values.push_back(from_float<T>(value));
  return values;
}

TEST_CASE_TEMPLATE("golden: attention and its log-sum-exp", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  const std::string folder = "tests/data/golden-layers/";
  const auto golden = nvllm::testing::read_golden(folder + "layers.safetensors");
  std::ifstream file(folder + "layers.json");
  const auto info = read_json(file);
  int cases = 0;
  for (const auto& entry : info.at("attention").at("cases")) {
    const std::string key = entry.at("key");
    CAPTURE(key);
    const auto rows = entry.at("q_lens").get<std::vector<std::int64_t>>();
    const auto tokens = entry.at("k_lens").get<std::vector<std::int64_t>>();
    std::vector<Sequence> sequences;
    for (std::size_t i = 0; i < rows.size(); ++i) sequences.push_back({rows[i], tokens[i]});
    const std::int64_t heads = entry.at("q_heads"), kv_heads = entry.at("kv_heads");
    AttentionCase<T> got(whole_groups(sequences, kv_heads, heads / kv_heads, entry.at("head_dim")));
    got.scale = entry.at("scale");
    got.q = values_of<T>(golden.at(key + ".q"));
    got.k = values_of<T>(golden.at(key + ".k"));
    got.v = values_of<T>(golden.at(key + ".v"));
    got.run(*backend);
    CHECK(count_wrong(got, golden.at(key + ".out").values, golden.at(key + ".lse").values, false) ==
          0);
    ++cases;
  }
  CHECK(cases == 5);
}

TEST_CASE("golden: parts of a sequence combine by their log-sum-exp") {
  BACKEND_OR_SKIP(backend);
  const auto golden = nvllm::testing::read_golden("tests/data/golden-layers/layers.safetensors");
  const auto& k = golden.at("merge.k").values;
  const auto& v = golden.at("merge.v").values;
  constexpr std::int64_t kToken = 2 * 64;
  // Keys [0, 37), of which query 3 sees none, and [37, 90): each query is a sequence of its own, so
  // that it sees all of a part.
  std::vector<AttentionCase<float>> parts;
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 37}, {37, 90}}) {
    const std::int64_t count = end - begin;
    AttentionCase<float> part(
        whole_groups({{1, count}, {1, count}, {1, count}, {1, begin == 0 ? 0 : count}}, 2, 3, 64));
    part.q = golden.at("merge.q").values;
    part.k.clear(), part.v.clear();
    for (const Sequence& sequence : part.shape.sequences) {
      part.k.insert(part.k.end(), k.begin() + begin * kToken,
                    k.begin() + (begin + sequence.tokens) * kToken);
      part.v.insert(part.v.end(), v.begin() + begin * kToken,
                    v.begin() + (begin + sequence.tokens) * kToken);
    }
    part.scale = 0.125f;
    part.run(*backend);
    const std::string number = begin == 0 ? "0" : "1";
    CHECK(count_wrong(part, golden.at("merge.out" + number).values,
                      golden.at("merge.lse" + number).values, false) == 0);
    parts.push_back(std::move(part));
  }
  AttentionCase<float> combined = parts[1];
  for (std::size_t head = 0; head < combined.lse.size(); ++head) {
    const double a = std::exp(parts[0].lse[head]), b = std::exp(parts[1].lse[head]);
    combined.lse[head] = static_cast<float>(std::log(a + b));
    for (std::size_t i = head * 64; i < (head + 1) * 64; ++i) {
      combined.out[i] = static_cast<float>((a * parts[0].out[i] + b * parts[1].out[i]) / (a + b));
    }
  }
  CHECK(count_wrong(combined, golden.at("merge.out").values, golden.at("merge.lse").values, true) ==
        0);
}

TEST_CASE("arguments that do not fit are refused by name") {
  BACKEND_OR_SKIP(backend);
  Buffer memory = backend->allocate(MemoryKind::device, 1 << 20, "test");
  const auto stream = backend->create_stream();
  backend->fill(memory.data(), 0, memory.bytes(), *stream);  // lengths too: no sequence has a row
  stream->synchronize();
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::bf16) {
    return TensorView(memory.data(), type, shape);
  };
  const auto refusal_of = [&](const Attention& call) {
    return refusal(*backend, [&](Stream& stream) { attention(call, stream); });
  };
  Attention good;
  good.out = good.q = tensor({4, 6, 64});
  good.kv.keys = good.kv.values = tensor({5, 16, 2, 64});
  good.kv.block_table = tensor({2, 3}, DType::i32);
  good.query_start = tensor({3}, DType::i32);
  good.kv_length = tensor({2}, DType::i32);
  good.lse = tensor({4, 6}, DType::f32);
  good.group = 3;
  good.max_query_rows = 2;
  good.max_kv_length = 48;
  CHECK(refusal_of(good) == "");

  const auto check = [&](const std::string& expected, auto&& spoil) {
    Attention bad = good;
    spoil(bad);
    const std::string got = refusal_of(bad);
    CAPTURE(expected);
    CAPTURE(got);
    CHECK(got.find("attention: " + expected) == 0);
  };
  check("q is int32 [4, 6, 64]; it must be float32", [&](Attention& a) {
    a.q = tensor({4, 6, 64}, DType::i32);
  });
  check("q is bfloat16 [4, 384]; it must be [rows", [&](Attention& a) { a.q = tensor({4, 384}); });
  check("q is bfloat16 [4, 6, 60]; it must be", [&](Attention& a) { a.q = tensor({4, 6, 60}); });
  check("q is bfloat16 [4, 6, 520]; it must be", [&](Attention& a) { a.q = tensor({4, 6, 520}); });
  check("a row of q is bfloat16 [1, 6, 64] with strides",
        [](Attention& a) { a.q.stride[1] = 128; });
  check("q is bfloat16 [4, 6, 64] with rows 128 elements apart",
        [](Attention& a) { a.q.stride[0] = 128; });
  check("q is bfloat16 [4, 6, 64] with stride 388", [](Attention& a) { a.q.stride[0] = 388; });
  check("q lies at ", [&](Attention& a) { a.q.data = static_cast<char*>(memory.data()) + 2; });
  check("out is float16 [4, 6, 64]; it must be bfloat16", [&](Attention& a) {
    a.out = tensor({4, 6, 64}, DType::f16);
  });
  check("out is bfloat16 [4, 6, 64] with strides", [](Attention& a) { a.out.stride[0] = 512; });
  check("out is bfloat16 [4, 3, 64], which does not fit", [&](Attention& a) {
    a.out = tensor({4, 3, 64});
  });
  check("keys are float16 [5, 16, 2, 64], which do not fit q", [&](Attention& a) {
    a.kv.keys = a.kv.values = tensor({5, 16, 2, 64}, DType::f16);
  });
  check("keys are bfloat16 [5, 16, 2, 32], which do not fit q", [&](Attention& a) {
    a.kv.keys = a.kv.values = tensor({5, 16, 2, 32});
  });
  check("keys is bfloat16 [5, 16, 128]; it must be [blocks", [&](Attention& a) {
    a.kv.keys = a.kv.values = tensor({5, 16, 128});
  });
  check("keys is bfloat16 [5, 16, 2, 64] with stride 2 of axis 3",
        [](Attention& a) { a.kv.keys.stride[3] = a.kv.values.stride[3] = 2; });
  check("keys is bfloat16 [5, 16, 2, 64] with stride 32 of axis 1",
        [](Attention& a) { a.kv.keys.stride[1] = a.kv.values.stride[1] = 32; });
  check("keys is bfloat16 [5, 16, 2, 64] with stride 132 of axis 1",
        [](Attention& a) { a.kv.keys.stride[1] = a.kv.values.stride[1] = 132; });
  check("values are bfloat16 [5, 8, 2, 64], but keys are", [&](Attention& a) {
    a.kv.values = tensor({5, 8, 2, 64});
  });
  check("values has no memory", [](Attention& a) { a.kv.values.data = nullptr; });
  check("block_table is int64 [2, 3]; it must be int32", [&](Attention& a) {
    a.kv.block_table = tensor({2, 3}, DType::i64);
  });
  check("block_table is int32 [2, 3] with strides",
        [](Attention& a) { a.kv.block_table.stride[0] = 8; });
  check("group is 0", [](Attention& a) { a.group = 0; });
  check("first_head is 3; it must be in a group of 3", [](Attention& a) { a.first_head = 3; });
  check("q is bfloat16 [4, 6, 64], keys are bfloat16 [5, 16, 2, 64]; that is too few",
        [](Attention& a) { a.first_head = 1; });
  check("query_start is int32 [2], kv_length int32 [2]",
        [&](Attention& a) { a.query_start = tensor({2}, DType::i32); });
  check("kv_length is int64 [2]; it must be int32",
        [&](Attention& a) { a.kv_length = tensor({2}, DType::i64); });
  check("visible is int32 [1], kv_length int32 [2]",
        [&](Attention& a) { a.visible = tensor({1}, DType::i32); });
  check("visible is int64 [2]; it must be int32",
        [&](Attention& a) { a.visible = tensor({2}, DType::i64); });
  check("kv_length is int32 [2], but the cache is of 1 sequences", [&](Attention& a) {
    a.kv.block_table = tensor({1, 3}, DType::i32);
  });
  check("max_query_rows is 1, but q has 4 rows", [](Attention& a) { a.max_query_rows = 1; });
  check("max_kv_length is 0, but q has 4 rows", [](Attention& a) { a.max_kv_length = 0; });
  check("lse is bfloat16 [4, 6]; it must be float32", [&](Attention& a) {
    a.lse = tensor({4, 6});
  });
  check("lse is float32 [6, 4], which does not fit", [&](Attention& a) {
    a.lse = tensor({6, 4}, DType::f32);
  });
}

}  // namespace
}  // namespace nvllm::kernels::testing
