// Segmented GEMMs have the bits of their segments' GEMMs of all rows and of tree_sum(), for any
// number of rows. Invariant GEMMs also guarantee what ranks with parts of a weight rely on: an
// output has the same bits however many others there are.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/testing/gemm_case.h"
#include "kernels/pointwise/tree_sum.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

constexpr std::int64_t kSegmentedRows = 300;
constexpr std::int64_t kSegmentedM[] = {1, 2, 7, 8, 9, 16, 17, 40, 64, 113, 128, 129, 256, 300};

// The tree over `segments` segments, as on the ranks of a group.
TreeSum tree_over(int segments) {
  constexpr std::array<std::uint8_t, TreeSum::kMaxSources> kPerfect = {0, 1, 0, 2, 0, 1, 0, 3};
  TreeSum sum;
  sum.count = segments;
  int left = segments;
  for (int i = 0; i < segments; ++i) {
    const auto n = static_cast<std::size_t>(i);
    sum.blocks[n] = static_cast<std::uint8_t>(i);
    sum.merges[n] = kPerfect[n];
    left -= kPerfect[n];
  }
  sum.merges[static_cast<std::size_t>(segments - 1)] += static_cast<std::uint8_t>(left - 1);
  return sum;
}

struct SegmentSizes {
  std::int64_t outputs, inputs;  // of a segment
  int segments;
  bool bias = false;
};

// One segmented GEMM of up to kSegmentedRows rows, whose x has columns of others beside it.
template <typename T>
class Segmented {
 public:
  Segmented(Backend& backend, const SegmentSizes& sizes, unsigned seed)
      : sizes_(sizes),
        seed_(seed),
        stream_(backend.create_stream()),
        gemm_(create_gemm(backend, {.invariant = true})),
        weight_(backend, *stream_,
                normal_values<T>(sizes.segments * sizes.outputs * sizes.inputs, seed)),
        x_(backend, *stream_, normal_values<T>(kSegmentedRows * x_stride(), seed + 1)),
        bias_(backend, *stream_, normal_values<T>(sizes.outputs, seed + 2)),
        summands_(backend, *stream_,
                  std::vector<float>(sizes.segments * kSegmentedRows * sizes.outputs)),
        out_(backend, *stream_, std::vector<T>(kSegmentedRows * sizes.outputs)) {}

  SegmentedGemm of(std::int64_t first, std::int64_t m) const {
    SegmentedGemm gemm{
        .weight = {.values = weight_.view({sizes_.segments * sizes_.outputs, sizes_.inputs})},
        .x = x_.view({kSegmentedRows, x_stride()}).rows(first, m),
        .sum = tree_over(sizes_.segments)};
    gemm.x.shape[1] = sizes_.segments * sizes_.inputs;
    gemm.sum.out = out_.view({m, sizes_.outputs});
    gemm.sum.sources = summands_.view({sizes_.segments * m, sizes_.outputs});
    if (sizes_.bias) gemm.sum.bias = bias_.view({sizes_.outputs});
    return gemm;
  }

  std::vector<T> run(std::int64_t first, std::int64_t m) {
    gemm_->run_segmented(of(first, m), *stream_);
    return result(m);
  }

  // All rows, by separate GEMMs and a sum.
  std::vector<T> one_by_one() {
    const SegmentedGemm all = of(0, kSegmentedRows);
    for (int n = 0; n < sizes_.segments; ++n) {
      gemm_->run(gemm_->call(all.weight_of(n), all.operands_of(n)), *stream_);
    }
    tree_sum(all.sum, *stream_);
    return result(kSegmentedRows);
  }

  // The number of elements in a row of one_by_one()'s result that are not near the definition.
  int wrong_elements(std::int64_t row, const std::vector<T>& all) const {
    const std::int64_t outputs = sizes_.outputs, inputs = sizes_.inputs;
    const auto weight = normal_values<T>(sizes_.segments * outputs * inputs, seed_);
    const auto x = normal_values<T>(kSegmentedRows * x_stride(), seed_ + 1);
    const auto bias = normal_values<T>(outputs, seed_ + 2);
    const auto at = [](const std::vector<T>& values, std::int64_t i) {
      return double{to_float(values[static_cast<std::size_t>(i)])};
    };
    int wrong = 0;
    for (std::int64_t output = 0; output < outputs; ++output) {
      double sum = sizes_.bias ? at(bias, output) : 0;
      for (std::int64_t n = 0; n < sizes_.segments; ++n) {
        for (std::int64_t i = 0; i < inputs; ++i) {
          sum += at(x, row * x_stride() + n * inputs + i) *
                 at(weight, (n * outputs + output) * inputs + i);
        }
      }
      const float off = static_cast<float>(sizes_.segments * inputs) * 0x1p-20f;
      wrong += !near(all[static_cast<std::size_t>(row * outputs + output)],
                     from_float<T>(static_cast<float>(sum)), off);
    }
    return wrong;
  }

 private:
  std::int64_t x_stride() const { return sizes_.segments * sizes_.inputs + 16; }
  std::vector<T> result(std::int64_t m) {
    std::vector<T> values = out_.fetch();
    values.resize(static_cast<std::size_t>(m * sizes_.outputs));
    return values;
  }

  SegmentSizes sizes_;
  unsigned seed_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Gemm> gemm_;
  Placed<T> weight_, x_, bias_;
  Placed<float> summands_;
  Placed<T> out_;
};

TEST_CASE_TEMPLATE("segmented: the bits of a GEMM for each segment and of their sum, for any M", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const unsigned seed = fresh_seed();
  std::mt19937 random(seed);
  for (const SegmentSizes& sizes : {SegmentSizes{256, 128, 8},
                                    {1024, 384, 8, true},
                                    {72, 48, 7},
                                    {40, 24, 3, true},
                                    {64, 16, 5},
                                    {8, 8, 2},
                                    {96, 200, 1, true},
                                    {520, 1032, 4},
                                    {37, 12, 8},
                                    {1536, 64, 6}}) {
    CAPTURE(sizes.outputs);
    CAPTURE(sizes.inputs);
    CAPTURE(sizes.segments);
    Segmented<T> gemm(*backend, sizes, seed);
    const std::vector<T> right = gemm.one_by_one();
    for (const std::int64_t row : {std::int64_t{0}, kSegmentedRows - 1}) {
      CHECK(gemm.wrong_elements(row, right) == 0);
    }
    std::string differing;
    for (const std::int64_t m : kSegmentedM) {
      const auto first = static_cast<std::int64_t>(random() % (kSegmentedRows - m + 1));
      const std::vector<T> got = gemm.run(first, m);
      const T* const there = right.data() + first * sizes.outputs;
      if (std::memcmp(got.data(), there, got.size() * sizeof(T)) != 0) differing += str(m, ' ');
    }
    CHECK(differing == "");
  }
}

// A part of an LM head, of QKV, of gate and up.
TEST_CASE_TEMPLATE("invariant: an output has the same bits among any number of outputs", T, Bf16,
                   F16) {
  BACKEND_OR_SKIP(backend);
  const unsigned seed = fresh_seed();
  std::mt19937 random(seed);
  constexpr std::int64_t kMaxRows = 130;
  for (const std::int64_t inputs : {64, 264, 1024}) {
    CAPTURE(inputs);
    const std::int64_t all = inputs == 64 ? 40'000 : 10'000;
    const auto stream = backend->create_stream();
    const auto gemm = create_gemm(*backend, {.invariant = true});
    const Placed<T> weight(*backend, *stream, normal_values<T>(all * inputs, seed));
    const Placed<T> x(*backend, *stream, normal_values<T>(kMaxRows * inputs, seed + 1));
    Placed<float> out(*backend, *stream, std::vector<float>(kMaxRows * all));
    const auto result_of = [&](std::int64_t m, std::int64_t first, std::int64_t count) {
      const GemmCall call =
          gemm->call({.values = weight.view({all, inputs}).rows(first, count)},
                     {.out = out.view({m, count}), .x = x.view({kMaxRows, inputs}).rows(0, m)});
      gemm->run(call, *stream);
      return out.fetch();
    };
    for (const std::int64_t m : {1, 9, 16, 17, 64, 128, 130}) {
      const std::vector<float> right = result_of(m, 0, all);
      std::string differing;
      for (const std::int64_t count : {8, 16, 24, 64, 200, 1000, 2048, 6144, 10'000}) {
        const auto first = static_cast<std::int64_t>(random() % ((all - count) / 8 + 1)) * 8;
        const std::vector<float> got = result_of(m, first, count);
        bool same = true;
        for (std::int64_t row = 0; row < m; ++row) {
          same = same && std::memcmp(got.data() + row * count, right.data() + row * all + first,
                                     static_cast<std::size_t>(count) * sizeof(float)) == 0;
        }
        if (!same) differing += str(count, ' ');
      }
      CAPTURE(m);
      CHECK(differing == "");
    }
  }
}

// Groups are experts, of which a rank has some. With this many groups at once, no kernel has a list
// of them in shared memory.
TEST_CASE_TEMPLATE("invariant: rows of a group have the same bits among any number of groups", T,
                   Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  const unsigned seed = fresh_seed();
  std::mt19937 random(seed);
  constexpr std::int64_t kGroups = 512, kOutputs = 64, kInputs = 192;
  std::vector<std::int32_t> start = {0};
  for (std::int64_t n = 0; n < kGroups; ++n) {
    start.push_back(start.back() + static_cast<std::int32_t>(random() % 4));
  }
  const std::int64_t rows = start.back();
  const auto stream = backend->create_stream();
  const auto gemm = create_gemm(*backend, {.invariant = true});
  const Placed<T> weight(*backend, *stream, normal_values<T>(kGroups * kOutputs * kInputs, seed));
  const Placed<T> x(*backend, *stream, normal_values<T>(rows * kInputs, seed + 1));
  const Placed<std::int32_t> starts(*backend, *stream, start);
  Placed<T> out(*backend, *stream, std::vector<T>(static_cast<std::size_t>(rows * kOutputs)));
  const auto run = [&](std::int64_t first, std::int64_t count) {
    gemm->run_grouped({.weight = {.values = weight.view({kGroups * kOutputs, kInputs})
                                                .rows(first * kOutputs, count * kOutputs)},
                       .start = starts.view({kGroups + 1}).rows(first, count + 1),
                       .out = out.view({rows, kOutputs}),
                       .x = x.view({rows, kInputs})},
                      *stream);
  };
  run(0, kGroups);
  const std::vector<T> all = out.fetch();
  const Placed<T> zeros(*backend, *stream,
                        std::vector<T>(static_cast<std::size_t>(rows * kOutputs)));
  for (const int ranks : {2, 3, 8}) {
    CAPTURE(ranks);
    backend->copy(out.data(), zeros.data(), all.size() * sizeof(T), *stream);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t first = rank * kGroups / ranks, end = (rank + 1) * kGroups / ranks;
      run(first, end - first);
    }
    CHECK(same_bits(out.fetch(), all));
  }
}

TEST_CASE("segmented GEMMs refuse what does not fit, by name") {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const auto gemm = create_gemm(*backend, {.invariant = true});
  const Placed<float> memory(*backend, *stream, std::vector<float>(64));
  stream->synchronize();
  const auto refusal = [&](const auto& change) {
    TreeSum sum = tree_over(2);
    sum.out = memory.view({2, 4});
    sum.sources = memory.view({4, 4});
    SegmentedGemm args{
        .weight = {.values = memory.view({8, 3})}, .x = memory.view({2, 6}), .sum = sum};
    change(args);
    try {
      gemm->run_segmented(args, *stream);
      stream->synchronize();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal([](SegmentedGemm&) {}) == "");
  CHECK(refusal([&](SegmentedGemm& args) {
          args.weight.values = memory.view({7, 3});
        }) == "gemm: weight is float32 [7, 3]; of 2 segments it must have 8 outputs, without bias");
  CHECK(refusal([&](SegmentedGemm& args) {
          args.x = memory.view({2, 5});
        }) == "gemm: x is float32 [2, 5]; it must be [rows of out, segments * inputs], [2, 6]");
  CHECK(refusal([&](SegmentedGemm& args) { args.x.dtype = DType::bf16; }).starts_with("gemm: x"));
  CHECK(refusal([](SegmentedGemm& args) { std::swap(args.sum.blocks[0], args.sum.blocks[1]); }) ==
        "gemm: segment 0 is block 1 of the sum; it must be its own");
  CHECK(refusal([](SegmentedGemm& args) { args.sum.count = 9; }).starts_with("tree_sum: count"));
}

}  // namespace
}  // namespace nvllm::kernels::testing
