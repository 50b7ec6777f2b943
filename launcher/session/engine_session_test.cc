// Engine settings from the environment.
#include "launcher/session/engine_session.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "base/text.h"

namespace nvllm::launcher {
namespace {

using runtime::EngineOptions;
using runtime::Invariance;

Environment with(const char* batch_invariant) {
  return [batch_invariant](const char* name) -> std::optional<std::string> {
    if (std::string(name) != "VLLM_BATCH_INVARIANT" || batch_invariant == nullptr) return {};
    return batch_invariant;
  };
}

Invariance applied(const char* batch_invariant, Invariance option) {
  EngineOptions options;
  options.invariance = option;
  apply_environment(with(batch_invariant), options);
  return options.invariance;
}

TEST_CASE("VLLM_BATCH_INVARIANT=1 stands for --invariant batch, where that is not given") {
  CHECK(applied("1", Invariance::automatic) == Invariance::batch);
  CHECK(applied("1", Invariance::off) == Invariance::off);
  CHECK(applied("0", Invariance::automatic) == Invariance::off);
  CHECK(applied(nullptr, Invariance::automatic) == Invariance::off);
  CHECK(applied(nullptr, Invariance::batch) == Invariance::batch);
}

TEST_CASE("VLLM_BATCH_INVARIANT=1 is refused with options that cannot be with it") {
  EngineOptions options;
  options.kv_offload = runtime::KvOffload::chunked;
  options.host_attention = 0.5;
  CHECK_THROWS_WITH_AS(
      apply_environment(with("1"), options),
      "VLLM_BATCH_INVARIANT=1: --invariant batch: --kv-host-attention combines the host's results "
      "with the device's; pass --kv-host-attention off, or --invariant off",
      Error);
}

TEST_CASE("Keys and values in chunks have invariant results on CPUs alone") {
  EngineOptions options;
  options.kv_offload = runtime::KvOffload::chunked;
  for (const Invariance invariance : {Invariance::batch, Invariance::tp}) {
    options.invariance = invariance;
    runtime::check_invariance(options, {});
    const std::string refusal =
        str("--invariant ", runtime::name_of(invariance),
            ": --kv-offload chunked has not been tried with it on GPUs; pass --kv-offload "
            "layerwise, or off, or --invariant off");
    CHECK_THROWS_WITH_AS(runtime::check_invariance(options, {.gpus = true}), refusal.c_str(),
                         Error);
  }
  options.invariance = Invariance::off;
  runtime::check_invariance(options, {.gpus = true});
}

TEST_CASE("GPUs have invariant results, but not with quantized weights") {
  EngineOptions options;
  for (const Invariance invariance : {Invariance::batch, Invariance::tp}) {
    options.invariance = invariance;
    runtime::check_invariance(options, {.gpus = true});
    runtime::check_invariance(options, {.quantized_weights = true});
    const std::string refusal =
        str("--invariant ", runtime::name_of(invariance),
            ": not with quantized weights on GPUs so far; pass --quantization none, or --invariant "
            "off");
    CHECK_THROWS_WITH_AS(
        runtime::check_invariance(options, {.gpus = true, .quantized_weights = true}),
        refusal.c_str(), Error);
  }
  options.invariance = Invariance::off;
  runtime::check_invariance(options, {.gpus = true, .quantized_weights = true});
}

}  // namespace
}  // namespace nvllm::launcher
