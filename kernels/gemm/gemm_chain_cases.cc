// GEMMs that follow one another as in a decoder's layers: each reads what the one ahead of it has
// written, while its weights and those of later ones may already be on their way.
#include <algorithm>
#include <cmath>

#include "kernels/gemm/gemm.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {
namespace {

constexpr std::int64_t kLayers = 12, kHidden = 256, kInner = 384, kMaxM = 100;

TEST_CASE_TEMPLATE("GEMMs in a graph wait for those ahead of them, however early they begin", T,
                   FLOAT_TYPES) {
  BACKEND_OR_SKIP(backend);
  const auto stream = backend->create_stream();
  const auto gemm = create_gemm(*backend);
  constexpr std::int64_t kUp = 2 * kInner * kHidden, kDown = kHidden * kInner;
  const Placed ups(*backend, *stream, normal_values<T>(kLayers * kUp, 1, 0, 0.08f));
  const Placed downs(*backend, *stream, normal_values<T>(kLayers * kDown, 2, 0, 0.08f));
  const Placed norm(*backend, *stream, normal_values<T>(kHidden, 3, 1, 0.1f));
  const std::vector<T> first = normal_values<T>(kMaxM * kHidden, 4);
  Placed normed(*backend, *stream, std::vector<T>(kMaxM * kHidden));
  Placed squares(*backend, *stream, std::vector<float>(kHidden / kSquaresColumns * kSquaresRows));
  Placed inner(*backend, *stream, std::vector<T>(kMaxM * 2 * kInner));
  Placed activated(*backend, *stream, std::vector<T>(kMaxM * kInner));
  stream->synchronize();  // weights are constants

  // M, and whether the activation is the first GEMM's epilogue or the second one's prologue.
  for (const auto& chain : {std::pair{1, false},
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
    const std::int64_t m = chain.first;
    const bool gated_epilogue = chain.second;
    CAPTURE(m);
    CAPTURE(gated_epilogue);
    Placed sum(*backend, *stream, first);
    const DeferredNorm deferred{.weighted = normed.view({m, kHidden}),
                                .squares = squares.view({kHidden / kSquaresColumns, kSquaresRows})};
    const auto pass = [&](const auto& after_each) {
      bool defers = false;
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        const TensorView up(ups.data() + layer * kUp, dtype_of<T>, {2 * kInner, kHidden});
        GemmOperands reads{.out = inner.view({m, 2 * kInner}), .x = sum.view({m, kHidden})};
        reads.prologue.norm_weight = norm.view({kHidden});
        reads.prologue.prepared = normed.view({m, kHidden});
        if (defers) reads.prologue.deferred = deferred;
        GemmFusion fusion{.prologue = Prologue::rms_norm};
        if (gated_epilogue) {
          reads.epilogue.gate_up = reads.out;
          reads.out = activated.view({m, kInner});
          fusion.epilogue = Epilogue::gated_activation;
        }
        gemm->run(gemm->call({.values = up}, reads, fusion), *stream);
        after_each();
        const TensorView down(downs.data() + layer * kDown, dtype_of<T>, {kHidden, kInner});
        const TensorView residual = sum.view({m, kHidden});
        GemmOperands adds{.out = residual, .x = reads.out, .residual = residual};
        adds.prologue.prepared = activated.view({m, kInner});
        adds.epilogue.norm_weight = norm.view({kHidden});
        adds.epilogue.deferred = deferred;
        fusion = {};
        if (!gated_epilogue) fusion.prologue = Prologue::gated_activation;
        const GemmCall call = gemm->call({.values = down}, adds, fusion);
        defers = call.plan.defers_next;
        gemm->run(call, *stream);
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
