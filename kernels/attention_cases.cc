// Attention against its plain definition and against expected numbers, on whichever backend is linked.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "device/backend_under_test.h"
#include "device/cpu/stream.h"
#include "kernels/attention.h"
#include "testing/golden.h"

namespace nvllm::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr Nanoseconds kShortSpin = std::chrono::microseconds(10);
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Half the distance of neighbouring values, relative to them.
template <typename T>
constexpr float kRounding = 0x1p-24f;
template <>
constexpr float kRounding<Bf16> = 0x1p-8f;
template <>
constexpr float kRounding<F16> = 0x1p-11f;

// The least positive value.
template <typename T>
constexpr float kLeast = 0x1p-126f;
template <>
constexpr float kLeast<F16> = 0x1p-24f;

struct Sequence {
  std::int64_t rows, tokens;
};

struct Shape {
  std::vector<Sequence> sequences;
  std::int64_t heads, kv_heads, head_dim;
  std::int64_t group, first_head = 0;
  std::int64_t block_size = 16;  // 0: contiguous
};

Shape whole_groups(std::vector<Sequence> sequences, std::int64_t kv_heads, std::int64_t group,
                   std::int64_t head_dim, std::int64_t block_size = 16) {
  return {std::move(sequences), kv_heads * group, kv_heads, head_dim, group, 0, block_size};
}

// Memory of the backend with a copy of the values in it.
class Placed {
 public:
  template <typename T>
  Placed(Backend& backend, Stream& stream, const std::vector<T>& values)
      : there_(backend.allocate(MemoryKind::device, values.size() * sizeof(T), "test")) {
    Buffer here = backend.allocate(MemoryKind::pinned, values.size() * sizeof(T), "test");
    if (!values.empty()) std::memcpy(here.data(), values.data(), here.bytes());
    backend.copy(there_.data(), here.data(), here.bytes(), stream);
    stream.synchronize();
  }
  void* data() const { return there_.data(); }
  template <typename T>
  void fetch(Backend& backend, Stream& stream, std::vector<T>& values) const {
    Buffer here = backend.allocate(MemoryKind::pinned, values.size() * sizeof(T), "test");
    backend.copy(here.data(), there_.data(), here.bytes(), stream);
    stream.synchronize();
    if (!values.empty()) std::memcpy(values.data(), here.data(), here.bytes());
  }

 private:
  Buffer there_;
};

// One call: its tensors' values on the host. Keys and values are kept per sequence and token, and laid
// out as the shape says when it is run; what no token lies in is NaN.
template <typename T>
struct Case {
  Shape shape;
  std::vector<T> q;     // [rows][heads][head_dim]
  std::vector<T> k, v;  // [sequence][token][kv_head][head_dim]
  float scale;
  std::int64_t q_gap = 0;       // elements between rows of q
  std::int64_t slack_rows = 0;  // by which the bounds are larger than they need to be
  std::int64_t slack_tokens = 0;
  unsigned layout = 1;  // seed of where blocks lie
  std::vector<T> out;
  std::vector<float> lse;
  bool weights_rounded = false;  // to T: tensor cores take no others

  explicit Case(Shape s) : shape(std::move(s)) {
    q.resize(rows() * row_elements());
    k.resize(tokens() * token_elements());
    v.resize(k.size());
    scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  }

  static Case random(Shape shape, unsigned seed) {
    Case c(std::move(shape));
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal;
    for (T& value : c.q) value = from_float<T>(normal(bits));
    for (T& value : c.k) value = from_float<T>(1.5f * normal(bits));
    for (T& value : c.v) value = from_float<T>(normal(bits));
    return c;
  }

  std::int64_t rows() const { return total(&Sequence::rows); }
  std::int64_t tokens() const { return total(&Sequence::tokens); }
  std::int64_t row_elements() const { return shape.heads * shape.head_dim; }
  std::int64_t token_elements() const { return shape.kv_heads * shape.head_dim; }

  // The plain definition.
  void run_reference() {
    const auto backend = create_backend(DeviceKind::cpu);
    const auto stream = backend->create_stream();
    run(*backend, *stream, [](const Attention& args) { attention_reference(args); });
  }
  void run(Backend& backend) {
    const auto stream = backend.create_stream();
    run(backend, *stream, [&](const Attention& args) { attention(args, *stream); });
    weights_rounded = backend.kind() == DeviceKind::cuda && sizeof(T) == 2;
  }
  // On so many of the CPU's threads.
  void run(Backend& backend, int threads) {
    nvllm::cpu::Stream stream("test", kShortSpin, std::make_shared<nvllm::cpu::Crew>(threads));
    run(backend, stream, [&](const Attention& args) { attention(args, stream); });
  }

 private:
  std::int64_t total(std::int64_t Sequence::*what) const {
    std::int64_t sum = 0;
    for (const Sequence& sequence : shape.sequences) sum += sequence.*what;
    return sum;
  }
  std::int64_t longest(std::int64_t Sequence::*what) const {
    std::int64_t most = 0;
    for (const Sequence& sequence : shape.sequences) most = std::max(most, sequence.*what);
    return most;
  }

  template <typename Call>
  void run(Backend& backend, Stream& stream, const Call& call) {
    const std::int64_t sequences = shape.sequences.size();
    const bool paged = shape.block_size > 0;
    // Contiguous blocks have room for more than the longest sequence.
    const std::int64_t block_size = paged ? shape.block_size : longest(&Sequence::tokens) + 3;
    const std::int64_t width = paged ? longest(&Sequence::tokens) / block_size + 2 : 1;
    const std::int64_t blocks = paged ? 2 * sequences * width + 1 : sequences;

    // Every sequence gets blocks from all over the cache; the other half is nobody's. Entries of the table
    // that no token needs name a block of NaN.
    std::vector<std::int32_t> ids(blocks);
    std::iota(ids.begin(), ids.end(), 0);
    if (paged) std::shuffle(ids.begin(), ids.end(), std::mt19937(layout));
    const std::int32_t nobodys = ids.back();
    std::vector<std::int32_t> table(sequences * width, nobodys), starts{0}, lengths;
    std::vector<T> keys(blocks * block_size * token_elements(), from_float<T>(kNaN));
    std::vector<T> values = keys;
    std::int64_t next_block = 0, from = 0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const auto [rows_here, tokens_here] = shape.sequences[s];
      for (std::int64_t t = 0; t < tokens_here; ++t, ++from) {
        if (t % block_size == 0) table[s * width + t / block_size] = ids[next_block++];
        const std::int64_t slot =
            std::int64_t{table[s * width + t / block_size]} * block_size + t % block_size;
        std::copy_n(&k[from * token_elements()], token_elements(), &keys[slot * token_elements()]);
        std::copy_n(&v[from * token_elements()], token_elements(),
                    &values[slot * token_elements()]);
      }
      if (!paged && tokens_here == 0) ++next_block;
      starts.push_back(starts.back() + static_cast<std::int32_t>(rows_here));
      lengths.push_back(static_cast<std::int32_t>(tokens_here));
    }
    std::vector<T> apart(rows() * (row_elements() + q_gap), from_float<T>(kNaN));
    for (std::int64_t r = 0; r < rows(); ++r) {
      std::copy_n(q.begin() + r * row_elements(), row_elements(),
                  apart.begin() + r * (row_elements() + q_gap));
    }
    out.assign(rows() * row_elements(), from_float<T>(-77));
    lse.assign(rows() * shape.heads, -77);

    const Placed q_there(backend, stream, apart), k_there(backend, stream, keys),
        v_there(backend, stream, values), table_there(backend, stream, table),
        starts_there(backend, stream, starts), lengths_there(backend, stream, lengths),
        out_there(backend, stream, out), lse_there(backend, stream, lse);
    Attention args;
    args.out = TensorView(out_there.data(), dtype_of<T>, {rows(), shape.heads, shape.head_dim});
    args.q = TensorView(q_there.data(), dtype_of<T>, {rows(), shape.heads, shape.head_dim});
    args.q.stride[0] += q_gap;
    args.kv.keys = TensorView(k_there.data(), dtype_of<T>,
                              {blocks, block_size, shape.kv_heads, shape.head_dim});
    args.kv.values = args.kv.keys;
    args.kv.values.data = v_there.data();
    if (paged) args.kv.block_table = TensorView(table_there.data(), DType::i32, {sequences, width});
    args.query_start = TensorView(starts_there.data(), DType::i32, {sequences + 1});
    args.kv_length = TensorView(lengths_there.data(), DType::i32, {sequences});
    args.lse = TensorView(lse_there.data(), DType::f32, {rows(), shape.heads});
    args.group = shape.group;
    args.first_head = shape.first_head;
    args.scale = scale;
    args.max_query_rows = longest(&Sequence::rows) + slack_rows;
    args.max_kv_length = longest(&Sequence::tokens) + slack_tokens;
    call(args);
    out_there.fetch(backend, stream, out);
    lse_there.fetch(backend, stream, lse);
  }
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

bool close(float got, float expected, float tolerance) {
  if (std::isnan(expected)) return std::isnan(got);
  if (std::isinf(expected)) return got == expected;
  return std::fabs(got - expected) <= tolerance;
}

// How many results are further from the expected ones than rounding explains. `expected_rounded`: they
// are rounded to T themselves.
//
// A score is a sum of head_dim products and at most S = |q| |k| scale, off by a few of float32's roundings
// of S; its weight is off by that relatively, and log-sum-exp absolutely. Tensor cores take weights in T, so
// there each is off by a rounding of T more. A result is an average of values with these weights: what they
// are off by relatively, it is off by times the largest |v|.
template <typename T>
int count_wrong(const Case<T>& got, const std::vector<float>& out, const std::vector<float>& lse,
                bool expected_rounded) {
  const std::int64_t head_dim = got.shape.head_dim;
  const auto longest = [&](const std::vector<T>& x) {
    double most = 0;
    for (std::size_t head = 0; head < x.size() / head_dim; ++head) {
      double sum = 0;
      for (std::int64_t i = 0; i < head_dim; ++i) {
        const double value = to_float(x[head * head_dim + i]);
        sum += value * value;
      }
      if (std::isfinite(sum)) most = std::max(most, sum);
    }
    return static_cast<float>(std::sqrt(most));
  };
  float largest_v = 0;
  for (const T value : got.v) {
    if (std::isfinite(to_float(value))) largest_v = std::max(largest_v, std::fabs(to_float(value)));
  }
  const float score = longest(got.q) * longest(got.k) * got.scale;
  const float of_lse = (16 * score + 32) * 0x1p-24f;
  const float of_weight = of_lse + (got.weights_rounded ? kRounding<T> : 0);
  const float of_out = kRounding<T> * (expected_rounded ? 2 : 1);
  int wrong = 0;
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    const float tolerance = std::fabs(out[i]) * of_out + largest_v * of_weight + kLeast<T>;
    wrong += !close(to_float(got.out[i]), out[i], tolerance);
  }
  for (std::size_t i = 0; i < got.lse.size(); ++i) {
    wrong += !close(got.lse[i], lse[i], of_lse + std::fabs(lse[i]) * 0x1p-22f);
  }
  return wrong;
}

template <typename T>
int count_wrong(const Case<T>& got, const Case<T>& expected) {
  std::vector<float> out;
  for (const T value : expected.out) out.push_back(to_float(value));
  return count_wrong(got, out, expected.lse, true);
}

template <typename T>
void check_against_reference(Backend& backend, const Case<T>& asked) {
  Case<T> got = asked;
  Case<T> expected = asked;
  got.run(backend);
  expected.run_reference();
  CHECK(count_wrong(got, expected) == 0);
}

std::vector<Sequence> some_sequences(std::mt19937& random, int count, int most_rows,
                                     int most_tokens) {
  std::vector<Sequence> sequences;
  for (int i = 0; i < count; ++i) {
    const std::int64_t rows = random() % (most_rows + 1);
    sequences.push_back({rows, rows + 1 + static_cast<std::int64_t>(random() % most_tokens)});
  }
  return sequences;
}

TEST_CASE_TEMPLATE("attention is what its definition says, for all head sizes and groups", T, float,
                   Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(3);
  const std::int64_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 33};
  const std::int64_t head_dims[] = {64, 128, 32, 80, 96, 256, 8, 200, 64};
  for (int i = 0; i < 9; ++i) {
    for (const int most_rows : {1, 5, 70}) {  // decoding, a few rows each, prefill
      Shape shape = whole_groups(some_sequences(random, 3, most_rows, 150), 1 + random() % 3,
                                 groups[i], head_dims[i], 16);
      CAPTURE(shape.group);
      CAPTURE(shape.head_dim);
      CAPTURE(most_rows);
      check_against_reference(*backend, Case<T>::random(shape, random()));
    }
  }
}

TEST_CASE_TEMPLATE("a rank's heads may begin and end inside groups", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  // 9 heads in groups of 3 over 2 ranks: heads 5 to 8; then 1 to 7 of groups of 4, and one alone.
  for (const auto& [heads, kv_heads, group, first_head] :
       {std::array<std::int64_t, 4>{4, 2, 3, 2}, {7, 2, 4, 1}, {1, 1, 8, 7}, {2, 3, 2, 1}}) {
    for (const std::int64_t rows : {1, 30}) {
      CAPTURE(heads);
      CAPTURE(rows);
      Shape shape{{{rows, 40}, {1, 17}, {rows, rows}}, heads, kv_heads, 64, group, first_head};
      check_against_reference(*backend, Case<T>::random(shape, 9));
    }
  }
}

TEST_CASE_TEMPLATE("sequences of one token, without rows, without tokens", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 20}) {
    CAPTURE(rows);
    const Shape shape =
        whole_groups({{1, 1}, {0, 50}, {rows, 64}, {0, 0}, {0, 1}, {rows, rows}}, 2, 3, 64);
    Case<T> got = Case<T>::random(shape, 5);
    check_against_reference(*backend, got);
    got.run(*backend);
    // The first row sees one token: its value is the result.
    CHECK(same_bits(std::vector<T>(got.out.begin(), got.out.begin() + 64),
                    std::vector<T>(got.v.begin(), got.v.begin() + 64)));
  }
  Case<T> nothing(whole_groups({{0, 3}, {0, 0}}, 2, 2, 64));
  nothing.run(*backend);
  Case<T> nobody(whole_groups({}, 2, 2, 64));
  nobody.run(*backend);
}

TEST_CASE_TEMPLATE("rows without a token give 0 and an lse of -infinity", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {2, 40}) {
    Case<T> got = Case<T>::random(whole_groups({{rows, 1}}, 1, 2, 64), 5);
    got.run(*backend);
    const std::size_t without = (rows - 1) * 2;
    CHECK(std::count_if(got.out.begin(), got.out.end(), [](T x) { return to_float(x) == 0; }) ==
          static_cast<std::ptrdiff_t>(without * 64));
    CHECK(std::count(got.lse.begin(), got.lse.end(), -kInfinity) ==
          static_cast<std::ptrdiff_t>(without));
    CHECK(std::isfinite(got.lse.back()));
  }
}

TEST_CASE_TEMPLATE("long contexts, which several threads or blocks share", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  const Shape decode = whole_groups({{1, 5000}, {1, 3}, {2, 1030}, {1, 2048}}, 2, 4, 64, 32);
  check_against_reference(*backend, Case<T>::random(decode, 1));
  const Shape many = whole_groups(std::vector<Sequence>(70, {1, 300}), 2, 2, 128, 32);
  check_against_reference(*backend, Case<T>::random(many, 2));
  const Shape chunk = whole_groups({{100, 1500}}, 1, 2, 128, 32);
  check_against_reference(*backend, Case<T>::random(chunk, 3));
}

TEST_CASE_TEMPLATE("where blocks lie, and how large they are, changes no bit", T, float, Bf16,
                   F16) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 50}) {
    CAPTURE(rows);
    Case<T> contiguous =
        Case<T>::random(whole_groups({{rows, 200}, {1, 90}, {0, 7}}, 2, 3, 64, 0), 4);
    contiguous.run(*backend);
    for (const std::int64_t block_size : {1, 16, 48, 64, 256}) {
      CAPTURE(block_size);
      Case<T> paged = contiguous;
      paged.shape.block_size = block_size;
      paged.layout = static_cast<unsigned>(block_size);
      paged.run(*backend);
      CHECK(same_bits(paged.out, contiguous.out));
      CHECK(same_bits(paged.lse, contiguous.lse));
    }
  }
}

TEST_CASE_TEMPLATE("rows of q that lie apart, and bounds that are too large, change nothing", T,
                   float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Case<T> plain = Case<T>::random(whole_groups({{33, 70}, {1, 64}}, 2, 2, 64), 6);
  Case<T> apart = plain;
  plain.run(*backend);
  apart.q_gap = 2 * 2 * 64;
  apart.run(*backend);
  CHECK(same_bits(apart.out, plain.out));
  CHECK(same_bits(apart.lse, plain.lse));

  Case<T> bounded = Case<T>::random(whole_groups({{1, 70}, {1, 64}}, 2, 2, 64), 6);
  bounded.slack_rows = 100;
  bounded.slack_tokens = 5000;
  check_against_reference(*backend, bounded);
}

TEST_CASE_TEMPLATE("a prompt in chunks is the same as at once", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  Case<T> whole = Case<T>::random(whole_groups({{200, 200}}, 2, 3, 64), 8);
  whole.run(*backend);
  std::vector<float> expected;
  for (const T value : whole.out) expected.push_back(to_float(value));
  for (const auto& [begin, end] :
       {std::pair<std::int64_t, std::int64_t>{0, 64}, {64, 131}, {131, 132}, {132, 200}}) {
    CAPTURE(begin);
    Case<T> chunk(whole_groups({{end - begin, end}}, 2, 3, 64));
    const std::int64_t row = chunk.row_elements();
    chunk.q.assign(whole.q.begin() + begin * row, whole.q.begin() + end * row);
    chunk.k.assign(whole.k.begin(), whole.k.begin() + end * chunk.token_elements());
    chunk.v.assign(whole.v.begin(), whole.v.begin() + end * chunk.token_elements());
    chunk.run(*backend);
    const std::vector<float> out(expected.begin() + begin * row, expected.begin() + end * row);
    const std::vector<float> lse(whole.lse.begin() + begin * 6, whole.lse.begin() + end * 6);
    // Both are off by their weights.
    CHECK(count_wrong(chunk, out, lse, true) == 0);
  }
}

TEST_CASE_TEMPLATE("a NaN spoils what attends to it and nothing else", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 40}) {
    CAPTURE(rows);
    const Case<T> clean = Case<T>::random(whole_groups({{rows, 80}, {rows, 90}}, 2, 2, 64), 7);
    Case<T> bad_q = clean;
    bad_q.q[1 * 64 + 5] = from_float<T>(kNaN);  // row 0, head 1
    bad_q.run(*backend);
    CHECK(std::count_if(bad_q.out.begin(), bad_q.out.end(),
                        [](T x) { return std::isnan(to_float(x)); }) == 64);
    CHECK(std::count_if(bad_q.out.begin() + 64, bad_q.out.begin() + 128,
                        [](T x) { return std::isnan(to_float(x)); }) == 64);
    Case<T> bad_k = clean;
    bad_k.k[(79 * 2 + 1) * 64] = from_float<T>(kNaN);  // the last token of sequence 0, KV head 1
    check_against_reference(*backend, bad_k);
    bad_k.run(*backend);
    CHECK(std::count_if(bad_k.lse.begin(), bad_k.lse.end(),
                        [](float x) { return std::isnan(x); }) == 2);
    Case<T> bad_v = clean;
    bad_v.v[(80 - rows) * 2 * 64] = from_float<T>(kNaN);  // seen by all of its rows
    check_against_reference(*backend, bad_v);
  }
}

TEST_CASE_TEMPLATE("infinite, huge and tiny scores do as the definition", T, float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  for (const std::int64_t rows : {1, 30}) {
    for (const float factor : {0.0f, 1e-6f, 1e-3f, 30.0f, 3000.0f}) {
      CAPTURE(factor);
      Case<T> c = Case<T>::random(whole_groups({{rows, 77}}, 1, 2, 64), 12);
      for (T& value : c.q) value = from_float<T>(factor * to_float(value));
      check_against_reference(*backend, c);
    }
    // A key that is infinitely far from every row is attended to by none; q must not have zeros.
    Case<T> c = Case<T>::random(whole_groups({{rows, 77}}, 1, 2, 64), 13);
    for (T& value : c.q) value = from_float<T>(1 + std::fabs(to_float(value)));
    c.k[20 * 64 + 3] = from_float<T>(-kInfinity);
    check_against_reference(*backend, c);
  }
}

TEST_CASE("attention runs in graphs, with lengths that change") {
  BACKEND_OR_SKIP(backend);
  const std::int64_t tokens = 100;
  Buffer device = backend->allocate(MemoryKind::device, 1 << 16, "test");
  Buffer host = backend->allocate(MemoryKind::pinned, 1 << 16, "test");
  const auto stream = backend->create_stream();
  const auto at = [](const Buffer& buffer, std::int64_t offset) {
    return static_cast<char*>(buffer.data()) + offset;
  };
  // Token t's values are t, all keys are 0: the result is the mean, (length - 1) / 2.
  std::memset(host.data(), 0, host.bytes());
  for (std::int64_t i = 0; i < tokens * 8; ++i) {
    reinterpret_cast<Bf16*>(at(host, 4096))[i] = from_float<Bf16>(static_cast<float>(i / 8));
  }
  Attention args;
  args.q = TensorView(at(device, 0), DType::bf16, {1, 1, 8});
  args.out = TensorView(at(device, 1024), DType::bf16, {1, 1, 8});
  args.kv.values = TensorView(at(device, 4096), DType::bf16, {1, 128, 1, 8});
  args.kv.keys = TensorView(at(device, 8192), DType::bf16, {1, 128, 1, 8});
  args.query_start = TensorView(at(device, 2048), DType::i32, {2});
  args.kv_length = TensorView(at(device, 2056), DType::i32, {1});
  args.max_query_rows = 1;
  args.max_kv_length = tokens;
  const auto graph = backend->capture(*stream, [&] {
    backend->copy(device.data(), host.data(), device.bytes(), *stream);
    attention(args, *stream);
    backend->copy(at(host, 1024), at(device, 1024), 16, *stream);
  });
  auto* numbers = reinterpret_cast<std::int32_t*>(at(host, 2048));
  for (const std::int32_t length : {1, 3, 65, 99}) {
    CAPTURE(length);
    numbers[0] = 0, numbers[1] = 1, numbers[2] = length;
    graph->launch(*stream);
    stream->synchronize();
    CHECK(to_float(*reinterpret_cast<Bf16*>(at(host, 1024))) == (length - 1) / 2.0f);
  }
}

// --- expected numbers

// Values that are exact in bfloat16, as T.
template <typename T>
std::vector<T> values_of(const testing::GoldenTensor& tensor) {
  std::vector<T> values;
  for (const float value : tensor.values) values.push_back(from_float<T>(value));
  return values;
}

TEST_CASE_TEMPLATE("golden: attention and its log-sum-exp", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  const std::string folder = "tests/data/golden-layers/";
  const auto golden = testing::read_golden(folder + "layers.safetensors");
  const auto info = nlohmann::json::parse(std::ifstream(folder + "layers.json"));
  int cases = 0;
  for (const auto& entry : info.at("attention").at("cases")) {
    const std::string key = entry.at("key");
    CAPTURE(key);
    const auto rows = entry.at("q_lens").get<std::vector<std::int64_t>>();
    const auto tokens = entry.at("k_lens").get<std::vector<std::int64_t>>();
    std::vector<Sequence> sequences;
    for (std::size_t i = 0; i < rows.size(); ++i) sequences.push_back({rows[i], tokens[i]});
    const std::int64_t heads = entry.at("q_heads"), kv_heads = entry.at("kv_heads");
    Case<T> got(whole_groups(sequences, kv_heads, heads / kv_heads, entry.at("head_dim")));
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

TEST_CASE("golden: parts of a sequence merge by their log-sum-exp") {
  BACKEND_OR_SKIP(backend);
  const auto golden = testing::read_golden("tests/data/golden-layers/layers.safetensors");
  const auto& k = golden.at("merge.k").values;
  const auto& v = golden.at("merge.v").values;
  constexpr std::int64_t kToken = 2 * 64, kRow = 6 * 64;
  // Keys [0, 37), of which query 3 sees none, and [37, 90): each query is a sequence of its own, so
  // that it sees all of a part.
  std::vector<Case<float>> parts;
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 37}, {37, 90}}) {
    const std::int64_t count = end - begin;
    Case<float> part(
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
  Case<float> merged = parts[1];
  for (std::size_t head = 0; head < merged.lse.size(); ++head) {
    const double a = std::exp(parts[0].lse[head]), b = std::exp(parts[1].lse[head]);
    merged.lse[head] = static_cast<float>(std::log(a + b));
    for (std::size_t i = head * 64; i < (head + 1) * 64; ++i) {
      merged.out[i] = static_cast<float>((a * parts[0].out[i] + b * parts[1].out[i]) / (a + b));
    }
  }
  static_assert(kRow == 6 * 64);
  CHECK(count_wrong(merged, golden.at("merge.out").values, golden.at("merge.lse").values, true) ==
        0);
}

// --- the CPU's threads

TEST_CASE_TEMPLATE("on the CPU, neither threads nor other sequences change a bit", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() != DeviceKind::cpu) SKIP_TEST("this is promised of the CPU only");
  const Shape shape = whole_groups({{1, 3000}, {3, 900}, {50, 120}, {1, 1025}}, 2, 3, 64, 32);
  Case<T> alone = Case<T>::random(shape, 21);
  Case<T> shared = alone;
  alone.run(*backend, 1);
  for (const int threads : {2, 3, 7}) {
    CAPTURE(threads);
    shared.run(*backend, threads);
    CHECK(same_bits(shared.out, alone.out));
    CHECK(same_bits(shared.lse, alone.lse));
  }
  Case<T> first(whole_groups({{1, 3000}}, 2, 3, 64, 64));
  first.q.assign(alone.q.begin(), alone.q.begin() + first.q.size());
  first.k.assign(alone.k.begin(), alone.k.begin() + first.k.size());
  first.v.assign(alone.v.begin(), alone.v.begin() + first.v.size());
  first.run(*backend, 2);
  CHECK(same_bits(first.out,
                  std::vector<T>(alone.out.begin(), alone.out.begin() + first.out.size())));
}

// --- refusals

std::string refusal(Backend& backend, const Attention& call) {
  const auto stream = backend.create_stream();
  try {
    attention(call, *stream);
  } catch (const Error& error) {
    stream->synchronize();
    return error.what();
  }
  stream->synchronize();
  return "";
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
  CHECK(refusal(*backend, good) == "");

  const auto check = [&](const std::string& expected, auto&& spoil) {
    Attention bad = good;
    spoil(bad);
    const std::string got = refusal(*backend, bad);
    CAPTURE(expected);
    CAPTURE(got);
    CHECK(got.find("attention: " + expected) == 0);
  };
  check("q is int32 [4, 6, 64]; it must be float32", [&](Attention& a) {
    a.q = tensor({4, 6, 64}, DType::i32);
  });
  check("q is bfloat16 [4, 384]; it must be [rows", [&](Attention& a) { a.q = tensor({4, 384}); });
  check("q is bfloat16 [4, 6, 60]; it must be", [&](Attention& a) { a.q = tensor({4, 6, 60}); });
  check("q is bfloat16 [4, 6, 264]; it must be", [&](Attention& a) { a.q = tensor({4, 6, 264}); });
  check("a row of q is bfloat16 [1, 6, 64] with strides",
        [](Attention& a) { a.q.stride[1] = 128; });
  check("q is bfloat16 [4, 6, 64] with rows 128 elements apart",
        [](Attention& a) { a.q.stride[0] = 128; });
  check("q is bfloat16 [4, 6, 64] with stride 388", [](Attention& a) { a.q.stride[0] = 388; });
  check("q lies at ", [&](Attention& a) { a.q.data = static_cast<char*>(memory.data()) + 2; });
  check("out is float32 [4, 6, 64]; it must be bfloat16", [&](Attention& a) {
    a.out = tensor({4, 6, 64}, DType::f32);
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
}  // namespace nvllm::kernels
