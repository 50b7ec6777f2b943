// Plans of a decoder layer's four GEMMs: what one leaves undone, another takes up.
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/gemm/testing/gemm_case.h"
#include "layers/layer_plan.h"

namespace nvllm::layers {
namespace {

using kernels::Activation;
using kernels::create_gemm;
using kernels::Epilogue;
using kernels::Gemm;
using kernels::GemmPlan;
using kernels::GemmWeight;
using kernels::Prologue;
using kernels::testing::describe;
using kernels::testing::same;

// A layer without values: plans read none.
class SomeLayer {
 public:
  SomeLayer(const Buffer& memory, std::mt19937& random) {
    const auto one_in = [&](unsigned count) { return random() % count == 0; };
    const auto length = [&](unsigned tiles) {
      return (one_in(8) ? 24 : 64) * static_cast<std::int64_t>(1 + random() % tiles);
    };
    const DType type = one_in(8) ? DType::f32 : one_in(4) ? DType::f16 : DType::bf16;
    const std::int64_t hidden = length(64), heads = length(64), inner = length(160);
    // Rarely one that is not aligned.
    const auto tensor = [&](std::initializer_list<std::int64_t> shape) {
      return TensorView(static_cast<char*>(memory.data()) + (one_in(16) ? size_of(type) : 0), type,
                        shape);
    };
    const bool bias = one_in(4);
    const auto weight = [&](std::int64_t outputs, std::int64_t inputs) {
      GemmWeight made{.values = tensor({outputs, inputs})};
      if (bias) made.bias = tensor({outputs});
      return made;
    };
    layer.qkv = weight(heads + 2 * length(8), hidden);
    layer.output = weight(hidden, heads);
    layer.gate_up = weight(2 * inner, hidden);
    layer.down = weight(hidden, inner);
    layer.attention_norm = tensor({hidden});
    layer.mlp_norm = tensor({hidden});
    layer.activation = one_in(4) ? Activation::gelu_tanh : Activation::silu;
  }

  LayerGemms layer;
};

bool same(const LayerPlan& a, const LayerPlan& b) {
  return same(a.qkv, b.qkv) && same(a.output, b.output) && same(a.gate_up, b.gate_up) &&
         same(a.down, b.down);
}

// Calls function(gemm, layer, request) for random layers and requests.
template <typename Function>
void for_random_layers(Backend& backend, unsigned seed, const Function& function) {
  const auto gemm = create_gemm(backend);
  const Buffer memory = backend.allocate(MemoryKind::device, 1 << 10, "test");
  std::mt19937 random(seed);
  for (std::int64_t m = 1; m <= 200; ++m) {
    for (int i = 0; i < 20; ++i) {
      const LayerGemms layer = SomeLayer(memory, random).layer;
      LayerRequest request;
      request.m = m;
      request.mlp_m = random() % 4 == 0 ? static_cast<std::int64_t>(1 + random() % m) : m;
      request.ranks = random() % 4 == 0 ? 2 : 1;
      request.deferred = request.ranks == 1 && random() % 2 == 0;
      request.may_defer = random() % 4 != 0;
      request.next = random() % 4 == 0 ? nullptr : &layer;
      CAPTURE(m);
      CAPTURE(request.mlp_m);
      CAPTURE(request.ranks);
      CAPTURE(describe(plan_layer(*gemm, layer, request).gate_up.shape));
      function(*gemm, layer, request);
    }
  }
}

bool defers(const LayerPlan& plan) {
  return plan.qkv.defers_next || plan.output.defers_next || plan.gate_up.defers_next ||
         plan.down.defers_next;
}

TEST_CASE("a layer's plan is a function of layer and request, and made of plans of single GEMMs") {
  BACKEND_OR_SKIP(backend);
  const auto other = create_gemm(*backend);
  for_random_layers(
      *backend, 300, [&](Gemm& gemm, const LayerGemms& layer, const LayerRequest& request) {
        const LayerPlan plan = plan_layer(gemm, layer, request);
        CHECK(same(plan_layer(gemm, layer, request), plan));
        CHECK(same(plan_layer(*other, layer, request), plan));
        for (const GemmPlan* one : {&plan.qkv, &plan.output, &plan.gate_up, &plan.down}) {
          CHECK(same(gemm.plan(one->shape), *one));
        }
      });
}

TEST_CASE("the activation of a layer is gate-up's own epilogue, or else down's prologue") {
  BACKEND_OR_SKIP(backend);
  for_random_layers(*backend, 310,
                    [](Gemm& gemm, const LayerGemms& layer, const LayerRequest& request) {
                      const LayerPlan plan = plan_layer(gemm, layer, request);
                      const bool epilogue = plan.gate_up.epilogue == Epilogue::gated_activation;
                      CHECK(epilogue != (plan.down.prologue == Prologue::gated_activation));
                      if (epilogue) CHECK(!plan.gate_up.epilogue_kernel);
                      if (!epilogue) CHECK(plan.gate_up.epilogue == Epilogue::none);
                      for (const GemmPlan* one : {&plan.qkv, &plan.output, &plan.down}) {
                        CHECK(one->epilogue == Epilogue::none);
                      }
                      CHECK(plan.output.prologue == Prologue::none);
                      if (epilogue) CHECK(plan.down.prologue == Prologue::none);
                    });
}

TEST_CASE("with several ranks, or norms apart, GEMMs have no norms and add no residuals") {
  BACKEND_OR_SKIP(backend);
  for_random_layers(*backend, 320,
                    [](Gemm& gemm, const LayerGemms& layer, const LayerRequest& request) {
                      LayerRequest among = request;
                      among.deferred = false;
                      for (among.ranks = 1; among.ranks <= 8; among.ranks *= 2) {
                        among.unfused_norms = among.ranks == 1;
                        const LayerPlan plan = plan_layer(gemm, layer, among);
                        CHECK(plan.qkv.prologue == Prologue::none);
                        CHECK(plan.gate_up.prologue == Prologue::none);
                        CHECK(!plan.output.shape.residual);
                        CHECK(!plan.down.shape.residual);
                        CHECK(!defers(plan));
                      }
                      among.ranks = 1;
                      among.unfused_norms = false;
                      const LayerPlan alone = plan_layer(gemm, layer, among);
                      CHECK(alone.qkv.shape.fusion.prologue == Prologue::rms_norm);
                      CHECK(alone.gate_up.shape.fusion.prologue == Prologue::rms_norm);
                      CHECK(alone.output.shape.residual);
                      CHECK(alone.down.shape.residual);
                    });
}

TEST_CASE("a layer without memory for deferred norms defers none") {
  BACKEND_OR_SKIP(backend);
  for_random_layers(*backend, 330,
                    [](Gemm& gemm, const LayerGemms& layer, const LayerRequest& request) {
                      LayerRequest without = request;
                      without.may_defer = false;
                      const LayerPlan plan = plan_layer(gemm, layer, without);
                      CHECK(!defers(plan));
                      CHECK(plan.gate_up.prologue != Prologue::deferred_rms_norm);
                      if (!without.deferred)
                        CHECK(plan.qkv.prologue != Prologue::deferred_rms_norm);
                    });
}

TEST_CASE("a norm is deferred only where the GEMM that reads its rows ends it") {
  BACKEND_OR_SKIP(backend);
  int in_layer = 0, to_next = 0;
  for_random_layers(*backend, 340,
                    [&](Gemm& gemm, const LayerGemms& layer, const LayerRequest& request) {
                      const LayerPlan plan = plan_layer(gemm, layer, request);
                      const auto ends = [](const GemmPlan& one) {
                        return one.prologue == Prologue::deferred_rms_norm;
                      };
                      CHECK(plan.output.defers_next == ends(plan.gate_up));
                      CHECK(!plan.qkv.defers_next);
                      CHECK(!plan.gate_up.defers_next);
                      if (plan.output.defers_next) CHECK(request.m == request.mlp_m);
                      if (!request.deferred) CHECK(!ends(plan.qkv));
                      in_layer += plan.output.defers_next;
                      if (!plan.down.defers_next) return;
                      ++to_next;
                      REQUIRE(request.next != nullptr);
                      LayerRequest then = request;
                      then.m = request.mlp_m;
                      then.deferred = true;
                      CHECK(ends(plan_layer(gemm, *request.next, then).qkv));
                    });
  const bool on_cpu = backend->kind() == DeviceKind::cpu;
  if (on_cpu) CHECK(in_layer + to_next == 0);
  if (in_layer + to_next == 0) SKIP_TEST("no GEMM defers a norm here");
  CHECK(in_layer > 50);
  CHECK(to_next > 50);
}

}  // namespace
}  // namespace nvllm::layers
