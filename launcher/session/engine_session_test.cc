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
  CHECK(applied("2", Invariance::automatic) == Invariance::batch);
  CHECK(applied("01", Invariance::automatic) == Invariance::batch);
  CHECK(applied("0", Invariance::automatic) == Invariance::off);
  CHECK(applied("", Invariance::automatic) == Invariance::off);
  CHECK(applied(nullptr, Invariance::automatic) == Invariance::off);
  CHECK(applied(nullptr, Invariance::batch) == Invariance::batch);
}

TEST_CASE("VLLM_BATCH_INVARIANT is a whole number") {
  for (const std::string value : {"true", "1 ", "0.5", "1x"}) {
    CHECK_THROWS_WITH_AS(
        applied(value.c_str(), Invariance::automatic),
        str("VLLM_BATCH_INVARIANT=", value, ": not a whole number; set it to 1 or 0").c_str(),
        Error);
  }
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

}  // namespace
}  // namespace nvllm::launcher
