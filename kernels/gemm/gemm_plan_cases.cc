// Plans of single GEMMs: what they may contain, what they depend on, and what Gemm::run() demands
// of the operands of a planned GEMM.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <random>

#include "kernels/gemm/testing/gemm_case.h"

namespace nvllm::kernels::testing {
namespace {

// A shape as a model may have it, or none: about half are whole tiles.
GemmShape random_shape(std::mt19937& random, std::int64_t m) {
  const auto one_in = [&](unsigned count) { return random() % count == 0; };
  const auto length = [&] {
    const auto tiles = static_cast<std::int64_t>(1 + random() % 64);
    if (one_in(2)) return 64 * tiles;
    return one_in(2) ? 8 * tiles : tiles;
  };
  GemmShape shape;
  shape.m = m;
  shape.outputs = one_in(16) ? 0 : length() * (one_in(8) ? 40 : 1);
  shape.inputs = one_in(16) ? 0 : length();
  constexpr DType kTypes[] = {DType::bf16, DType::bf16, DType::f16, DType::f32};
  shape.type = kTypes[random() % 4];
  shape.format = format_of(shape.type);
  shape.out_type = one_in(4) ? DType::f32 : shape.type;
  shape.bias = one_in(3);
  shape.residual = one_in(3);
  shape.deferred = one_in(2);
  shape.defer_next = one_in(2);
  constexpr Prologue kPrologues[] = {Prologue::none, Prologue::rms_norm,
                                     Prologue::gated_activation};
  shape.fusion.prologue = kPrologues[random() % 3];
  if (shape.fusion.prologue != Prologue::rms_norm) shape.deferred = false;
  if (shape.outputs % 2 == 0 && one_in(3)) {  // all is of one type then, and nothing is added
    shape.fusion.epilogue = Epilogue::gated_activation;
    shape.out_type = shape.type;
    shape.residual = shape.defer_next = false;
  }
  constexpr Activation kActivations[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh};
  shape.fusion.activation = kActivations[random() % 3];
  GemmShape::Vectors& vectors = shape.vectors;
  for (bool* aligned : {&vectors.weight, &vectors.x, &vectors.out}) *aligned = !one_in(8);
  return shape;
}

// Calls function(shape) with random shapes of every M that has a plan of its own, and some more.
template <typename Function>
void for_random_shapes(unsigned seed, const Function& function) {
  std::mt19937 random(seed);
  for (std::int64_t m = 0; m <= 200; ++m) {
    for (int i = 0; i < 10; ++i) function(random_shape(random, m));
  }
}

TEST_CASE("a plan is a function of the shape alone") {
  BACKEND_OR_SKIP(backend);
  const auto one = create_gemm(*backend), other = create_gemm(*backend);
  for_random_shapes(200, [&](const GemmShape& shape) {
    CAPTURE(describe(shape));
    const GemmPlan plan = one->plan(shape);
    CHECK(same(one->plan(shape), plan));
    CHECK(same(other->plan(shape), plan));
    GemmShape planned = shape;
    planned.m = std::min(shape.m, kManyRows);
    CHECK(plan.shape == planned);
  });
}

TEST_CASE("plans are the same for every M from kManyRows on") {
  BACKEND_OR_SKIP(backend);
  const auto gemm = create_gemm(*backend), other = create_gemm(*backend);
  std::mt19937 random(210);
  for (int i = 0; i < 200; ++i) {
    GemmShape shape = random_shape(random, kManyRows);
    CAPTURE(describe(shape));
    const GemmPlan plan = gemm->plan(shape);
    for (const std::int64_t m : {kManyRows + 1, std::int64_t{512}, std::int64_t{1} << 20}) {
      shape.m = m;
      CHECK(same(other->plan(shape), plan));
    }
  }
}

TEST_CASE("a plan has the prologue and epilogue that are asked for, in one of their forms") {
  BACKEND_OR_SKIP(backend);
  const auto gemm = create_gemm(*backend);
  for_random_shapes(220, [&](const GemmShape& shape) {
    CAPTURE(describe(shape));
    const GemmPlan& plan = gemm->plan(shape);
    const bool empty = shape.m == 0 || shape.outputs == 0;
    CHECK((plan.kernel == GemmKernel::none) == empty);
    if (empty) return;
    const bool ends_norm = plan.prologue == Prologue::deferred_rms_norm;
    if (ends_norm) CHECK((shape.fusion.prologue == Prologue::rms_norm && shape.deferred));
    if (!ends_norm) CHECK(plan.prologue == shape.fusion.prologue);
    CHECK(plan.epilogue == shape.fusion.epilogue);
    if (plan.prologue_kernel) CHECK((plan.prologue != Prologue::none && !ends_norm));
    if (plan.prologue == Prologue::gated_activation) CHECK(plan.prologue_kernel);
    if (plan.prologue_triggers_early) CHECK(plan.prologue_kernel);
    if (plan.epilogue_kernel) CHECK(plan.epilogue == Epilogue::gated_activation);
    if (plan.defers_next) CHECK(shape.defer_next);
  });
}

TEST_CASE("a plan asks of kernels what they can do") {
  BACKEND_OR_SKIP(backend);
  const auto gemm = create_gemm(*backend);
  for_random_shapes(230, [&](const GemmShape& shape) {
    CAPTURE(describe(shape));
    const GemmPlan& plan = gemm->plan(shape);
    const bool small_m = plan.kernel == GemmKernel::small_m;
    if (plan.prologue == Prologue::deferred_rms_norm || plan.defers_next || plan.kv_prefetch) {
      CHECK(small_m);
    }
    if (plan.samples) CHECK(plan.kernel == GemmKernel::lm_head);
    if (small_m || plan.samples) CHECK((shape.m >= 17 && shape.m <= kSquaresRows));
    if (plan.kernel == GemmKernel::gemv) CHECK(shape.m <= 16);
    if (plan.defers_next) {
      CHECK(shape.outputs % kSquaresColumns == 0);
      CHECK(plan.epilogue == Epilogue::none);
      CHECK(shape.out_type == shape.type);
    }
    const bool norms = plan.prologue == Prologue::rms_norm && !plan.prologue_kernel;
    if (norms && plan.kernel != GemmKernel::none) CHECK(plan.kernel == GemmKernel::gemv);
    const bool gates = plan.epilogue == Epilogue::gated_activation && !plan.epilogue_kernel;
    if (gates && plan.kernel != GemmKernel::none) {
      CHECK((small_m || plan.kernel == GemmKernel::gemv));
      CHECK(shape.fusion.activation == Activation::silu);
      if (small_m) CHECK(!shape.bias);
    }
  });
}

TEST_CASE("a GELU with a bias is an epilogue kernel of its own, for every M") {
  BACKEND_OR_SKIP(backend);
  const auto gemm = create_gemm(*backend);
  GemmShape shape;
  shape.outputs = 2048;
  shape.inputs = 1024;
  shape.bias = true;
  shape.fusion.epilogue = Epilogue::gated_activation;
  for (const Activation activation : {Activation::gelu, Activation::gelu_tanh}) {
    shape.fusion.activation = activation;
    for (shape.m = 1; shape.m <= 200; ++shape.m) {
      CAPTURE(shape.m);
      const GemmPlan& plan = gemm->plan(shape);
      CHECK(plan.epilogue == Epilogue::gated_activation);
      CHECK(plan.epilogue_kernel);
    }
  }
}

TEST_CASE("on the CPU there is one kernel, and all else are kernels of their own") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() != DeviceKind::cpu) SKIP_TEST("of the CPU alone");
  const auto gemm = create_gemm(*backend);
  for_random_shapes(240, [&](const GemmShape& shape) {
    CAPTURE(describe(shape));
    const GemmPlan& plan = gemm->plan(shape);
    if (plan.kernel == GemmKernel::none) return;
    CHECK(plan.kernel == GemmKernel::cpu);
    CHECK(plan.prologue == shape.fusion.prologue);
    CHECK(plan.prologue_kernel == (shape.fusion.prologue != Prologue::none));
    CHECK(plan.epilogue_kernel == (shape.fusion.epilogue != Epilogue::none));
    CHECK(!plan.defers_next);
    CHECK(!plan.samples);
    CHECK(!plan.kv_prefetch);
  });
}

// Whether a function ends its process by a broken NVLLM_CHECK. It is called in a process of its
// own.
template <typename Function>
bool aborts(const Function& function) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    const rlimit no_core{};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::close(STDERR_FILENO);
    try {
      function();
    } catch (const Error&) {
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

TEST_CASE("a GEMM runs with no other operands than the plan counts on") {
  BACKEND_OR_SKIP(backend);
  if (backend->kind() != DeviceKind::cpu) SKIP_TEST("a process that uses CUDA must not fork");
  Fixture fixture(*backend);
  const Setting setting{
      .m = 4, .outputs = 64, .inputs = 64, .type = DType::bf16, .bias = true, .residual = true};
  GemmTensors tensors(*backend, setting, 250);
  tensors.upload(*fixture.stream);
  const GemmCall good = fixture.call(tensors.arguments());
  const auto aborts_with = [&](const auto& spoil) {
    GemmCall bad = good;
    spoil(bad);
    return aborts([&] { fixture.gemm->run(bad, *fixture.stream); });
  };
  CHECK(aborts_with([](GemmCall& bad) {
    for (TensorView* rows : {&bad.operands.x, &bad.operands.out, &bad.operands.residual}) {
      rows->shape[0] = 3;
    }
  }));
  CHECK(aborts_with([](GemmCall& bad) { bad.weight.bias = {}; }));
  CHECK(aborts_with([](GemmCall& bad) { bad.operands.residual = {}; }));
  CHECK(aborts_with([](GemmCall& bad) {
    for (TensorView* narrow : {&bad.operands.out, &bad.operands.residual, &bad.weight.values}) {
      narrow->shape[narrow == &bad.weight.values ? 0 : 1] = 32;
    }
    bad.weight.bias.shape[0] = 32;
  }));
  CHECK(aborts_with([](GemmCall& bad) { bad.operands.out.dtype = DType::f32; }));
  CHECK(aborts_with([](GemmCall& bad) { bad.operands.x.data = bad.operands.x.as<Bf16>() + 1; }));
  CHECK(aborts_with([](GemmCall& bad) { bad.plan.prologue = Prologue::deferred_rms_norm; }));
  CHECK(aborts_with([](GemmCall& bad) { bad.plan.defers_next = true; }));
  fixture.gemm->run(good, *fixture.stream);
  tensors.out.fetch(*fixture.stream);
  CHECK(count_wrong(tensors, tensors.x.here, tensors.residual.here) == 0);
}

TEST_CASE(
    "a GEMM planned for many rows, or for any address, runs with other rows and better ones") {
  BACKEND_OR_SKIP(backend);
  Fixture fixture(*backend);
  const Setting setting{.m = 200, .outputs = 64, .inputs = 64, .type = DType::bf16};
  Setting shifted = setting;
  shifted.shift = 1;
  GemmTensors elsewhere(*backend, shifted, 259);
  const GemmPlan plan = fixture.call(elsewhere.arguments()).plan;
  for (const std::int64_t m : {kManyRows, std::int64_t{150}, std::int64_t{333}}) {
    CAPTURE(m);
    Setting other = setting;
    other.m = m;
    GemmTensors tensors(*backend, other, 260);
    tensors.upload(*fixture.stream);
    GemmCall call = fixture.call(tensors.arguments());
    call.plan = plan;
    fixture.gemm->run(call, *fixture.stream);
    tensors.out.fetch(*fixture.stream);
    CHECK(tensors.out.touched() == 0);
    CHECK(count_wrong(tensors, tensors.x.here, tensors.residual.here) == 0);
  }
}

}  // namespace
}  // namespace nvllm::kernels::testing
