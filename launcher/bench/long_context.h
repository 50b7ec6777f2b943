// bench long: one sequence of maximum length, in every mode of the KV cache.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/bench/floor.h"
#include "launcher/bench/measurements.h"
#include "launcher/bench/workload.h"
#include "launcher/cli/options.h"
#include "runtime/engine/engine_client.h"
#include "runtime/options.h"

namespace nvllm::launcher {

struct LongPlan {
  std::int64_t max_model_len = 40960;
  std::int64_t output_tokens = 128;
  std::int64_t warmup_tokens = 4096;  // of a prompt that runs first; 0: none
  std::int64_t vocabulary = 0;
  bool one_prompt = false;
};

// Prefill is measured with a prompt of max_model_len - 1 tokens and one generated token; decode
// with another prompt of max_model_len - output_tokens tokens and its answer. one_prompt: the
// second prompt is used for both.
struct LongResult {
  LongMode mode = LongMode::paged;
  std::string error = {};  // why it was not measured
  std::int64_t blocks = 0, block_size = 0, host_blocks = 0, resident_blocks = 0;

  std::int64_t prefill_tokens = 0;
  double prefill_s = 0;
  EngineWork prefill_work = {};

  std::int64_t context = 0;  // of decode, on average
  double decode_steps = 0, decode_s = 0;
  Summary step_s = {};
  EngineWork decode_work = {};

  double mean_step_s() const { return decode_s / decode_steps; }
};
LongResult measure_long(LoadGenerator& load, runtime::EngineClient& client, const LongPlan& plan,
                        PythonRandom& random);

// The floors of compute and of the KV cache transfers in this mode.
struct LongFloor {
  double compute_s = 0, link_s = 0;
  double seconds() const { return compute_s > link_s ? compute_s : link_s; }
};
// step_tokens: in the chunked modes every step of this many tokens reads the KV cache of all
// earlier tokens, except the blocks that stay on the device.
LongFloor prefill_floor(const LongResult& result, const ModelCost& cost, const DeviceSpeed& speed,
                        const LinkSpeed& link, std::int64_t step_tokens);
// The floors of one decode step.
LongFloor decode_floor(const LongResult& result, const ModelCost& cost, const DeviceSpeed& speed,
                       const LinkSpeed& link);

}  // namespace nvllm::launcher
