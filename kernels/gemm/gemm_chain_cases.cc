// Products that follow one another as in a decoder's layers: each reads what the one before has written, while its
// weights and those of the ones after it may already be on their way.
#include <algorithm>
#include <cmath>

#include "kernels/gemm/linear.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

constexpr std::int64_t kLayers = 12, kHidden = 256, kInner = 384, kMostRows = 100;

TEST_CASE_TEMPLATE("products in a graph wait for those before them, however early they begin", T,
                   float, Bf16, F16) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const auto matmul = create_matmul(*backend);
  constexpr std::int64_t kUp = 2 * kInner * kHidden, kDown = kHidden * kInner;
  const Placed ups(*backend, *stream, normal_values<T>(kLayers * kUp, 1, 0, 0.08f));
  const Placed downs(*backend, *stream, normal_values<T>(kLayers * kDown, 2, 0, 0.08f));
  const Placed norm(*backend, *stream, normal_values<T>(kHidden, 3, 1, 0.1f));
  const std::vector<T> first = normal_values<T>(kMostRows * kHidden, 4);
  Placed normed(*backend, *stream, std::vector<T>(kMostRows * kHidden));
  Placed squares(*backend, *stream, std::vector<float>(kHidden / kSquaresColumns * kSquaresRows));
  Placed inner(*backend, *stream, std::vector<T>(kMostRows * 2 * kInner));
  Placed activated(*backend, *stream, std::vector<T>(kMostRows * kInner));
  stream->synchronize();  // weights are constants

  // How many rows, and whether the activation comes after the first product or before the second.
  for (const auto& call : {std::pair{1, false},
                           {1, true},
                           {2, false},
                           {3, true},
                           {4, false},
                           {5, true},
                           {8, false},
                           {8, true},
                           {16, false},
                           {16, true},
                           {24, true},
                           {64, true},
                           {100, true}}) {
    const std::int64_t rows = call.first;
    const bool activates_after = call.second;
    CAPTURE(rows);
    CAPTURE(activates_after);
    Placed sum(*backend, *stream, first);
    const BegunNorm halves{.weighted = normed.view({rows, kHidden}),
                           .squares = squares.view({kHidden / kSquaresColumns, kSquaresRows})};
    const auto pass = [&](const auto& after_each) {
      bool begun = false;
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        Linear up;
        up.out = inner.view({rows, 2 * kInner});
        up.x = sum.view({rows, kHidden});
        up.weight = TensorView(ups.data() + layer * kUp, dtype_of<T>, {2 * kInner, kHidden});
        up.before = Linear::Before::rms_norm;
        up.norm_weight = norm.view({kHidden});
        up.scratch = normed.view({rows, kHidden});
        if (begun) up.begun = halves;
        if (activates_after) {
          up.product = up.out;
          up.out = activated.view({rows, kInner});
          up.after = Linear::After::gated_activation;
        }
        matmul->linear(up, *stream);
        after_each();
        Linear down;
        down.out = down.residual = sum.view({rows, kHidden});
        down.x = up.out;
        down.weight = TensorView(downs.data() + layer * kDown, dtype_of<T>, {kHidden, kInner});
        if (!activates_after) down.before = Linear::Before::gated_activation;
        down.scratch = activated.view({rows, kInner});
        begun = matmul->begins_norm(down);
        if (begun) {
          down.begins = halves;
          down.next_norm_weight = norm.view({kHidden});
        }
        matmul->linear(down, *stream);
        after_each();
      }
    };
    pass([&] { stream->synchronize(); });
    const std::vector<T> expected = sum.fetch();
    CHECK(std::all_of(expected.begin(), expected.end(),
                      [](T x) { return std::isfinite(to_float(x)); }));
    CHECK(!same_bits(expected, first));
    const auto graph = backend->capture(*stream, [&] { pass([] {}); });
    for (int launch = 0; launch < 3; ++launch) {
      const Placed again(*backend, *stream, first);
      backend->copy(sum.data(), again.data(), first.size() * sizeof(T), *stream);
      graph->launch(*stream);
      CHECK(same_bits(sum.fetch(), expected));
    }
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
