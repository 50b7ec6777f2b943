// Prompts in chunks: the gated delta rule from operands in bfloat16, on GPUs.
//
// What is allowed: operands of matrix multiplications are rounded to 8 bits, to within 2^-9 of
// their values, so a sum of many has a relative error of about 2^-9 / sqrt(3) = 0.0011 for each
// operand that is rounded. A row of results depends on five such operands (S, V - K S, T, D, A),
// and S itself on three: the square root of eight times 0.0011 is 0.3%. Where keys are alike,
// V - K S is a small difference. A single row may be one, too, and its norm then enlarges its error
// (0.17 was the largest in 262,144 rows); of a wrong row it is 1 or more. So vectors are compared,
// and all of them together.
#include <cmath>
#include <string>

#include "kernels/linear_attention/linear_attention.h"
#include "kernels/linear_attention/testing/linear_attention_case.h"
#include "kernels/linear_attention/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Delta;
using testing::on;
using testing::same_bits;
using testing::Sequences;

constexpr double kMaxError = 0.01, kMaxRowError = 0.5;

// Relative errors, in their norm, of all elements together, and the largest of the vectors of
// `size`.
struct Errors {
  double all, worst;
};
template <typename T>
Errors errors_of(const std::vector<T>& got, const std::vector<T>& right, std::int64_t size) {
  double worst = got.size() == right.size() ? 0 : 1, all_errors = 0, all_norms = 1e-20;
  for (std::size_t first = 0; first < right.size(); first += static_cast<std::size_t>(size)) {
    double error = 0, norm = 1e-20;
    for (std::size_t i = first; i < first + static_cast<std::size_t>(size); ++i) {
      const double wanted = to_float(right[i]), off = to_float(got[i]) - wanted;
      error += off * off, norm += wanted * wanted;
    }
    all_errors += error, all_norms += norm;
    const double relative = std::sqrt(error / norm);
    if (!(relative <= worst)) worst = relative;  // NaN, too
  }
  return {std::sqrt(all_errors / all_norms), worst};
}

void check_close(const Delta<Bf16>& delta, const std::vector<Bf16>& got, const Delta<Bf16>& right,
                 const std::vector<Bf16>& wanted) {
  const Errors rows = errors_of(got, wanted, delta.dv);
  CHECK(rows.all <= kMaxError);
  CHECK(rows.worst <= kMaxRowError);
  CHECK(errors_of(delta.state, right.state, delta.dk * delta.dv).worst <= kMaxError);
}

// What decays and keys are like.
struct Kind {
  const char* name;
  float a_log;          // log of how fast all decay
  float alike = 0;      // of keys: how much all have in common
  float more_beta = 0;  // before the sigmoid
};
constexpr Kind kKinds[] = {{.name = "as they come", .a_log = 0},
                           {.name = "decays near 1", .a_log = -6},
                           {.name = "decays near 0", .a_log = 4},
                           {.name = "keys alike", .a_log = -6, .alike = 2, .more_beta = 3}};

Delta<Bf16> delta_of(const Kind& kind, std::int64_t key_heads, std::int64_t group,
                     std::int64_t slots, unsigned seed) {
  Delta<Bf16> delta(key_heads, group, kDeltaChunkDim, kDeltaChunkDim, slots, seed);
  for (float& a_log : delta.a_log) a_log = kind.a_log + 0.3f * a_log;
  return delta;
}

Delta<Bf16>::Inputs inputs_of(const Kind& kind, const Delta<Bf16>& delta, std::int64_t rows,
                              unsigned seed) {
  auto in = delta.inputs(rows, seed);
  const auto common = testing::normal_values<float>(delta.key_heads * delta.dk, seed + 9);
  const std::int64_t keys = delta.key_heads * delta.dk;
  for (std::int64_t row = 0; row < rows; ++row) {
    Bf16* const k = in.qkv.data() + row * delta.qkv_columns() + keys;
    for (std::int64_t i = 0; i < keys && kind.alike > 0; ++i) {
      k[i] = from_float<Bf16>(to_float(k[i]) + kind.alike * common[i]);
    }
    for (std::int64_t i = 0; i < delta.heads(); ++i) {
      in.ba[row * 2 * delta.heads() + i] += kind.more_beta;
    }
  }
  return in;
}

// Sequences below and from kMinChunkedRows on, of whole and partial chunks, some that go on.
Sequences some_sequences() {
  Sequences sequences;
  sequences.add(100, 0, 3);
  sequences.add(1, 7, 0);
  sequences.add(64, 3, 5);
  sequences.add(0, 4, 1);
  sequences.add(63, 0, 4);
  sequences.add(70, 0, -1);
  sequences.add(200, 5, 2);
  sequences.add(65, 0, 6);
  return sequences;
}
constexpr std::int64_t kSomeSlots = 7;

#define CHUNKS_OR_SKIP(backend)                                   \
  BACKEND_OR_SKIP(backend);                                       \
  if (backend->kind() == DeviceKind::cpu) {                       \
    SKIP_TEST("CPUs take one token after the other, in float32"); \
  }

TEST_CASE("gated_delta_rule in chunks is what its definition says") {
  CHUNKS_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  unsigned seed = 50;
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.name);
    Delta<Bf16> delta = delta_of(kind, 2, 2, kSomeSlots, ++seed), right = delta;
    delta.chunks = true;
    const Sequences sequences = some_sequences();
    const auto in = inputs_of(kind, delta, sequences.rows(), ++seed);
    const auto got = delta.run(in, sequences, on(*backend, *stream, gated_delta_rule));
    const auto wanted = right.run(in, sequences, gated_delta_rule_reference);
    check_close(delta, got, right, wanted);
  }
}

// There are enough heads that blocks take several, one after the other, and all columns of each.
TEST_CASE("gated_delta_rule in chunks is what it is token by token, for many heads") {
  CHUNKS_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  for (const std::int64_t count : {5, 24}) {
    CAPTURE(count);
    Delta<Bf16> delta = delta_of(kKinds[0], 4, 4, count, 70), right = delta;
    delta.chunks = true;
    Sequences sequences;
    for (std::int64_t s = 0; s < count; ++s) sequences.add(64 + s * 37 % 150, s % 2, s);
    const auto in = delta.inputs(sequences.rows(), 71);
    const auto got = delta.run(in, sequences, on(*backend, *stream, gated_delta_rule));
    const auto wanted = right.run(in, sequences, on(*backend, *stream, gated_delta_rule));
    check_close(delta, got, right, wanted);
  }
}

TEST_CASE("gated_delta_rule in chunks stays what it is token by token, for long sequences") {
  CHUNKS_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  unsigned seed = 80;
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.name);
    Delta<Bf16> delta = delta_of(kind, 1, 2, 1, ++seed), right = delta;
    delta.chunks = true;
    Sequences one;
    one.add(20000, 0, 0);
    const auto in = inputs_of(kind, delta, one.rows(), ++seed);
    const auto got = delta.run(in, one, on(*backend, *stream, gated_delta_rule));
    const auto wanted = right.run(in, one, on(*backend, *stream, gated_delta_rule));
    check_close(delta, got, right, wanted);
  }
}

TEST_CASE("beside sequences in chunks, short ones have the bits that they have token by token") {
  CHUNKS_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  Delta<Bf16> delta = delta_of(kKinds[0], 2, 2, kSomeSlots, 90), right = delta;
  delta.chunks = true;
  const Sequences sequences = some_sequences();
  const auto in = delta.inputs(sequences.rows(), 91);
  const auto got = delta.run(in, sequences, on(*backend, *stream, gated_delta_rule));
  const auto wanted = right.run(in, sequences, on(*backend, *stream, gated_delta_rule));
  const std::int64_t columns = delta.heads() * delta.dv;
  int chunked = 0;
  for (std::size_t s = 0; s < sequences.slots.size(); ++s) {
    CAPTURE(s);
    const auto part = [&](const std::vector<Bf16>& rows) {
      return std::vector<Bf16>(rows.begin() + sequences.query_start[s] * columns,
                               rows.begin() + sequences.query_start[s + 1] * columns);
    };
    const std::int64_t rows = sequences.query_start[s + 1] - sequences.query_start[s];
    const bool in_chunks = rows >= kMinChunkedRows && sequences.slots[s] >= 0;
    CHECK((rows > 0 && in_chunks) != same_bits(part(got), part(wanted)));
    chunked += in_chunks;
  }
  CHECK(chunked == 4);
}

}  // namespace
}  // namespace nvllm::kernels
