// What Gemm::run() refuses: operands that do not fit, by name.
#include <initializer_list>
#include <string>

#include "kernels/gemm/testing/gemm_case.h"

namespace nvllm::kernels::testing {
namespace {

// Refused GEMMs: what would be a good one, in one piece of memory, spoilt in one way each.
struct Refusals {
  explicit Refusals(Backend& backend)
      : fixture(backend), memory(backend.allocate(MemoryKind::device, 1 << 20, "test")) {}

  TensorView tensor(std::initializer_list<std::int64_t> shape, DType type = DType::bf16) const {
    return TensorView(memory.data(), type, shape);
  }
  template <typename Spoil>
  std::string text(const Spoil& spoil) {
    GemmArguments bad = good;
    spoil(bad);
    return fixture.refusal(bad);
  }

  Fixture fixture;
  Buffer memory;
  GemmArguments good;
};

TEST_CASE("operands that do not fit are refused by name") {
  BACKEND_OR_SKIP(backend);
  Refusals refusals(*backend);
  GemmArguments& good = refusals.good;
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::bf16) {
    return refusals.tensor(shape, type);
  };
  good.operands.out = good.operands.residual = tensor({4, 32});
  good.operands.x = tensor({4, 64});
  good.weight = {.values = tensor({32, 64}), .bias = tensor({32})};
  const auto refused = [&](const auto& spoil, const char* text) {
    const std::string refusal = refusals.text(spoil);
    CHECK_MESSAGE(refusal.find(text) == 0, refusal);
  };
  refused(
      [&](GemmArguments& bad) {
        bad.weight.values = tensor({32, 64}, DType::i32);
      },
      "gemm: weight is int32 [32, 64]; it must be float32, bfloat16 or float16");
  refused([&](GemmArguments& bad) { bad.weight.values = tensor({32 * 64}); },
          "gemm: weight is bfloat16 [2048]");
  refused([&](GemmArguments& bad) { bad.weight.values.stride[0] = 65; },
          "gemm: weight is bfloat16 [32, 64] with strides [65, 1]");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.x = tensor({4, 63});
      },
      "gemm: x is bfloat16 [4, 63]; it must be [rows, inputs], [4, 64]");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.x = tensor({4, 64}, DType::f32);
      },
      "gemm: x is float32 [4, 64], but weight is bfloat16");
  refused([&](GemmArguments& bad) { bad.operands.x.stride[0] = 63; },
          "gemm: x is bfloat16 [4, 64] with strides [63, 1]");
  refused([&](GemmArguments& bad) { bad.operands.x.stride[1] = 2; },
          "gemm: x is bfloat16 [4, 64] with strides");
  refused([&](GemmArguments& bad) { bad.operands.x = tensor({64}); },
          "gemm: x is bfloat16 [64]; it must be");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.out = tensor({5, 32});
      },
      "gemm: out is bfloat16 [5, 32]; it must");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.out = tensor({4, 32}, DType::f16);
      },
      "gemm: out is float16 [4, 32]");
  refused([&](GemmArguments& bad) { bad.weight.bias = tensor({31}); },
          "gemm: bias is bfloat16 [31]");
  refused([&](GemmArguments& bad) { bad.weight.bias = tensor({32}, DType::f32); },
          "gemm: bias is float32 [32]");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.residual = tensor({4, 31});
      },
      "gemm: residual is bfloat16 [4, 31]");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.residual = tensor({4, 32}, DType::f32);
      },
      "gemm: residual is float32 [4, 32]");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.x.data = static_cast<char*>(refusals.memory.data()) + 1;
      },
      "gemm: x lies at ");

  good.operands.prologue.prepared = tensor({4, 64});
  good.operands.prologue.norm_weight = tensor({64});
  good.fusion.prologue = Prologue::rms_norm;
  refused([&](GemmArguments& bad) { bad.operands.prologue.prepared = {}; }, "gemm: prepared is ");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.prologue.prepared = tensor({3, 64});
      },
      "gemm: prepared is bfloat16 [3, 64]");
  refused([&](GemmArguments& bad) { bad.operands.prologue.norm_weight = tensor({63}); },
          "rms_norm: weight is bfloat16 [63]");
  refused([&](GemmArguments& bad) { bad.operands.x.stride[0] = 128; },
          "rms_norm: x is bfloat16 [4, 64] with strides");
  good.fusion.prologue = Prologue::gated_activation;
  refused([](GemmArguments&) {},
          "gemm: x is bfloat16 [4, 64]; it must be [rows, 2 * inputs], [4, 128]");
}

TEST_CASE("operands that do not fit a gated activation as epilogue are refused by name") {
  BACKEND_OR_SKIP(backend);
  Refusals refusals(*backend);
  GemmArguments& good = refusals.good;
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::bf16) {
    return refusals.tensor(shape, type);
  };
  good.weight = {.values = tensor({32, 64})};
  good.operands.x = tensor({4, 64});
  good.operands.out = tensor({4, 16});
  good.operands.epilogue.gate_up = tensor({4, 32});
  good.fusion.epilogue = Epilogue::gated_activation;
  const auto refused = [&](const auto& spoil, const char* text) {
    const std::string refusal = refusals.text(spoil);
    CHECK_MESSAGE(refusal.find(text) == 0, refusal);
  };
  refused(
      [&](GemmArguments& bad) {
        bad.operands.out = tensor({4, 32});
      },
      "gemm: out is bfloat16 [4, 32]; it must be [rows of x, outputs / 2], [4, 16]");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.out = tensor({4, 16}, DType::f32);
      },
      "gemm: out is float32 [4, 16], but weight is bfloat16; with a gated activation");
  refused([&](GemmArguments& bad) { bad.operands.epilogue.gate_up = {}; }, "gemm: gate_up is ");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.epilogue.gate_up = tensor({3, 32});
      },
      "gemm: gate_up is bfloat16 [3, 32]");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.residual = tensor({4, 16});
      },
      "gemm: residual is bfloat16 [4, 16]");
}

TEST_CASE("operands that do not fit a deferred norm are refused by name") {
  BACKEND_OR_SKIP(backend);
  Refusals refusals(*backend);
  GemmArguments& good = refusals.good;
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType type = DType::bf16) {
    return refusals.tensor(shape, type);
  };
  good.weight = {.values = tensor({64, 128})};
  good.operands.x = good.operands.prologue.prepared = tensor({20, 128});
  good.operands.out = tensor({20, 64});
  good.fusion.prologue = Prologue::rms_norm;
  good.operands.prologue.norm_weight = tensor({128});
  DeferredNorm& deferred = good.operands.prologue.deferred;
  deferred = {.weighted = tensor({20, 128}), .squares = tensor({2, 128}, DType::f32)};
  const auto refused = [&](const auto& spoil, const char* name) {
    const std::string refusal = refusals.text(spoil);
    CHECK_MESSAGE(refusal.find(name) != std::string::npos, refusal);
  };
  refused(
      [&](GemmArguments& bad) {
        bad.operands.prologue.deferred.weighted = tensor({20, 64});
      },
      "deferred.weighted");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.prologue.deferred.squares = tensor({2, 64}, DType::f32);
      },
      "deferred.squares");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.prologue.deferred.squares = tensor({2, 128});
      },
      "deferred.squares");
  refused(
      [&](GemmArguments& bad) {
        bad.operands.x = bad.operands.prologue.prepared = tensor({129, 128});
        bad.operands.prologue.deferred.weighted = bad.operands.x;
        bad.operands.out = tensor({129, 64});
      },
      "up to 128 rows");
}

}  // namespace
}  // namespace nvllm::kernels::testing
