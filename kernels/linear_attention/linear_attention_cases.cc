// The convolution and the gated delta rule against their plain definitions, and cut in any way
// against themselves at once.
#include <algorithm>
#include <functional>

#include "kernels/linear_attention/linear_attention.h"
#include "kernels/linear_attention/testing/linear_attention_case.h"
#include "kernels/linear_attention/testing/references.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels {
namespace {

using testing::Delta;
using testing::normal_values;
using testing::on;
using testing::random_sequences;
using testing::refusal;
using testing::same_bits;
using testing::Sequences;

// How many values are further off than arithmetic in float32 may be before they are rounded.
template <typename T>
int count_wrong(const std::vector<T>& got, const std::vector<T>& right, float off) {
  int wrong = got.size() != right.size();
  for (std::size_t i = 0; i < right.size(); ++i) wrong += !testing::near(got[i], right[i], off);
  return wrong;
}

template <typename T>
struct Conv {
  std::int64_t channels, width, slots, gap;
  std::vector<T> weight, state;

  Conv(std::int64_t channels, std::int64_t width, std::int64_t slots, std::int64_t gap,
       unsigned seed)
      : channels(channels),
        width(width),
        slots(slots),
        gap(gap),
        weight(normal_values<T>(channels * width, seed, 0, 0.5f)),
        state(normal_values<T>(slots * (width - 1) * channels, seed + 1)) {}

  // x: of rows that lie `gap` elements further apart than they are long.
  template <typename Run>
  std::vector<T> run(std::vector<T> x, Sequences sequences, const Run& run) {
    const std::int64_t rows = sequences.rows();
    std::vector<T> out(static_cast<std::size_t>(rows * channels), from_float<T>(-9));
    CausalConv args{.out = {out.data(), dtype_of<T>, {rows, channels}},
                    .x = {x.data(), dtype_of<T>, {rows, channels}},
                    .weight = {weight.data(), dtype_of<T>, {channels, width}},
                    .state = {state.data(), dtype_of<T>, {slots, width - 1, channels}},
                    .rows = sequences.view()};
    args.x.stride[0] = channels + gap;
    run(args);
    return out;
  }
};

TEST_CASE_TEMPLATE("causal_conv is what its definition says, for all shapes", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  std::mt19937 random(17);
  for (int i = 0; i < (nvllm::testing::kSanitized ? 4 : 30); ++i) {
    const auto channels = static_cast<std::int64_t>(1 + random() % 200);
    const auto width = static_cast<std::int64_t>(2 + random() % 7);
    CAPTURE(channels);
    CAPTURE(width);
    Conv<T> conv(channels, width, 5, i % 3, random()), right = conv;
    const Sequences sequences = random_sequences(random, conv.slots, i % 2 == 0 ? 6 : 70);
    const auto x = normal_values<T>(sequences.rows() * (channels + conv.gap), random());
    const auto got = conv.run(x, sequences, on(*backend, *stream, causal_conv));
    // Sums of 8 summands up to 10, and an exponential.
    CHECK(count_wrong(got, right.run(x, sequences, causal_conv_reference), 1e-5f) == 0);
    CHECK(same_bits(conv.state, right.state));
  }
}

// One step's results and states.
template <typename T>
void check_delta_rule(Backend& backend, Delta<T> delta, const Sequences& sequences,
                      std::mt19937& random) {
  CAPTURE(delta.key_heads);
  CAPTURE(delta.group);
  CAPTURE(delta.dk);
  CAPTURE(delta.dv);
  CAPTURE(sequences.slots.size());
  const auto stream = backend.create_stream();
  Delta<T> right = delta;
  const auto in = delta.inputs(sequences.rows(), random());
  const auto got = delta.run(in, sequences, on(backend, *stream, gated_delta_rule));
  const auto wanted = right.run(in, sequences, gated_delta_rule_reference);
  CHECK(count_wrong(got, wanted, 3e-5f) == 0);
  CHECK(count_wrong(delta.state, right.state, 1e-5f) == 0);
}

TEST_CASE_TEMPLATE("gated_delta_rule is what its definition says, for all shapes", T, FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(19);
  for (int i = 0; i < (nvllm::testing::kSanitized ? 3 : 20); ++i) {
    const auto dim = [&] { return static_cast<std::int64_t>(8 * (1 + random() % 10)); };
    const Delta<T> delta(static_cast<std::int64_t>(1 + random() % 3),
                         static_cast<std::int64_t>(1 + random() % 3), dim(), dim(), 4, random());
    check_delta_rule(*backend, delta, random_sequences(random, delta.slots), random);
  }
}

// What GPUs distinguish: dk up to 128 and above, dv up to 128 and above, rows of one chunk and of
// several, few heads and many.
TEST_CASE_TEMPLATE("gated_delta_rule is what its definition says, with heads of real sizes", T,
                   float, Bf16) {
  BACKEND_OR_SKIP(backend);
  if (nvllm::testing::kSanitized && backend->kind() == DeviceKind::cpu) {
    SKIP_TEST("loops over larger shapes of what the others test");
  }
  std::mt19937 random(29);
  constexpr std::int64_t kDims[][2] = {{128, 128}, {136, 96}, {64, 136}, {256, 256}};
  for (const auto& dims : kDims) {
    const Delta<T> delta(1, 2, dims[0], dims[1], 3, random());
    check_delta_rule(*backend, delta, random_sequences(random, delta.slots, 40), random);
  }
  const Delta<T> many(4, 2, 128, 128, 70, random());
  check_delta_rule(*backend, many, random_sequences(random, many.slots, 2), random);
}

// Rows of three sequences, at once; then in steps of up to `chunk` rows each, two sequences in one
// call and the third one alone.
template <typename Model, typename RunPart>
void check_chunks(const Model& model, const RunPart& run_part) {
  using Rows = std::decay_t<decltype(run_part(std::declval<Model&>(), Sequences{}, 0))>;
  constexpr std::int64_t kRows = 23;
  Model whole = model;
  std::vector<Rows> right;
  for (std::int64_t s = 0; s < 3; ++s) {
    Sequences one;
    one.add(kRows, 0, s);
    right.push_back(run_part(whole, one, s * kRows));
  }
  for (const std::int64_t chunk : {1, 2, 3, 7, 16}) {
    CAPTURE(chunk);
    Model cut = model;
    for (std::int64_t done = 0; done < kRows; done += chunk) {
      const std::int64_t rows = std::min(chunk, kRows - done);
      for (std::int64_t s = 0; s < 3; ++s) {
        Sequences one;
        one.add(rows, done, s);
        const Rows got = run_part(cut, one, s * kRows + done);
        const auto columns = std::ssize(right[s]) / kRows;
        const Rows wanted(right[s].begin() + done * columns,
                          right[s].begin() + (done + rows) * columns);
        CHECK(same_bits(got, wanted));
      }
    }
    CHECK(same_bits(cut.state, whole.state));
  }
}

TEST_CASE_TEMPLATE("a sequence in chunks has the bits of the whole", T, float, Bf16) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const Conv<T> conv(70, 4, 3, 0, 3);
  const auto x = normal_values<T>(3 * 23 * conv.channels, 4);
  check_chunks(conv, [&](Conv<T>& one, const Sequences& sequences, std::int64_t first) {
    const auto from = x.begin() + first * one.channels;
    return one.run({from, from + sequences.rows() * one.channels}, sequences,
                   on(*backend, *stream, causal_conv));
  });
  const Delta<T> delta(2, 2, 24, 40, 3, 5);
  const auto in = delta.inputs(3 * 23, 6);
  check_chunks(delta, [&](Delta<T>& one, const Sequences& sequences, std::int64_t first) {
    return one.run(one.part(in, first, first + sequences.rows()), sequences,
                   on(*backend, *stream, gated_delta_rule));
  });
}

// Sequences of one call beside some of them alone.
void check_company(Backend& backend, Delta<Bf16> together, std::int64_t max_alone,
                   std::mt19937& random) {
  const auto stream = backend.create_stream();
  Delta<Bf16> alone = together;
  const Sequences sequences = random_sequences(random, together.slots);
  const auto in = together.inputs(sequences.rows(), random());
  const auto all = together.run(in, sequences, on(backend, *stream, gated_delta_rule));
  const std::int64_t columns = together.heads() * together.dv;
  const std::int64_t state = together.heads() * together.dk * together.dv;
  for (std::int64_t s = std::ssize(sequences.slots) - 1; s >= 0 && max_alone > 0; --s) {
    const std::int64_t begin = sequences.query_start[s], end = sequences.query_start[s + 1];
    const std::int64_t slot = sequences.slots[s];
    if (begin == end || slot < 0) continue;
    --max_alone;
    Sequences one;
    one.add(end - begin, sequences.kv_length[s] - (end - begin), slot);
    const auto got =
        alone.run(alone.part(in, begin, end), one, on(backend, *stream, gated_delta_rule));
    CHECK(same_bits(got, {all.begin() + begin * columns, all.begin() + end * columns}));
    const auto part = [&](const std::vector<float>& states) {
      return std::vector<float>(states.begin() + slot * state, states.begin() + (slot + 1) * state);
    };
    CHECK(same_bits(part(together.state), part(alone.state)));
  }
}

// Together the sequences have enough heads that GPUs do not split a head as they do for one
// sequence alone.
TEST_CASE("sequences in one call have the bits that each has alone") {
  BACKEND_OR_SKIP(backend);
  std::mt19937 random(23);
  check_company(*backend, Delta<Bf16>(2, 3, 16, 32, 6, 7), 6, random);
  check_company(*backend, Delta<Bf16>(4, 2, 128, 128, 70, 8), 3, random);
}

TEST_CASE("causal_conv and gated_delta_rule refuse what does not fit, by name") {
  BACKEND_OR_SKIP(backend);
  Conv<float> conv(16, 4, 2, 0, 1);
  Sequences sequences;
  sequences.add(3, 0, 0);
  const auto conv_with = [&](const std::function<void(CausalConv&)>& change) {
    std::string words;
    conv.run(normal_values<float>(3 * 16, 2), sequences, [&](const CausalConv& args) {
      words = refusal(*backend, [&](Stream& stream) {
        on(*backend, stream, [&](CausalConv args, Stream& stream) {
          change(args);
          causal_conv(args, stream);
        })(args);
      });
    });
    return words;
  };
  CHECK(conv_with([](CausalConv&) {}) == "");
  CHECK(conv_with([](CausalConv& args) { args.weight.shape[1] = 9; }) ==
        "causal_conv: weight is float32 [16, 9]; it must be [channels, width], with a width of 2 "
        "to 8");
  CHECK(conv_with([](CausalConv& args) {
          args.state.shape[1] = 2;
        }).starts_with("causal_conv: state"));
  CHECK(conv_with([](CausalConv& args) {
          args.rows.kv_length.shape[0] = 2;
        }).starts_with("causal_conv: kv_length"));

  Delta<float> delta(1, 2, 16, 8, 2, 1);
  const auto delta_with = [&](const std::function<void(GatedDeltaRule&)>& change) {
    std::string words;
    delta.run(delta.inputs(3, 2), sequences, [&](const GatedDeltaRule& args) {
      words = refusal(*backend, [&](Stream& stream) {
        on(*backend, stream, [&](GatedDeltaRule args, Stream& stream) {
          change(args);
          gated_delta_rule(args, stream);
        })(args);
      });
    });
    return words;
  };
  CHECK(delta_with([](GatedDeltaRule&) {}) == "");
  CHECK(delta_with([](GatedDeltaRule& args) { args.key_heads = 3; }) ==
        "gated_delta_rule: key_heads is 3; it must divide the 2 value heads");
  CHECK(delta_with([](GatedDeltaRule& args) { args.state.shape[2] = 12; }) ==
        "gated_delta_rule: state is float32 [2, 2, 12, 8]; dk and dv must be multiples of 8, at "
        "most 256");
  CHECK(delta_with([](GatedDeltaRule& args) {
          args.ba.dtype = DType::bf16;
        }).starts_with("gated_delta_rule: ba"));
  alignas(16) unsigned char memory[256];
  CHECK(delta_with(
            [&](GatedDeltaRule& args) { args.chunks = TensorView(memory, DType::u8, {255}); }) ==
        "gated_delta_rule: chunks is uint8 [255]; it must have 256 bytes at a multiple of 16");
}

}  // namespace
}  // namespace nvllm::kernels
