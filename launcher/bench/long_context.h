// bench long: one sequence as long as the model may have it, in every mode of keeping keys and values.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/bench/floor.h"
#include "launcher/bench/load_generator.h"
#include "launcher/bench/long_mode.h"
#include "launcher/bench/python_random.h"
#include "launcher/bench/summary.h"
#include "launcher/bench/throughput.h"
#include "runtime/engine/engine_client.h"
#include "runtime/options.h"

namespace nvllm::launcher {

// Bytes per second between a device and pinned host memory, in large pieces, one direction at a time.
struct LinkSpeed {
  double to_device = 0, to_host = 0;
  std::string source;  // where these come from, for people
};

struct LongPlan {
  std::int64_t max_model_len = 40960;
  std::int64_t output_tokens = 128;
  std::int64_t warmup_tokens = 4096;  // of a prompt that comes first; 0: none does
  std::int64_t vocabulary = 0;
  bool one_prompt = false;
};

// A prompt of max_model_len - 1 tokens until its one token; then another prompt, which leaves room for
// output_tokens, and these. One prompt: the second is both.
struct LongResult {
  LongMode mode = LongMode::paged;
  std::string error = {};  // why it was not measured
  std::int64_t blocks = 0, block_size = 0, host_blocks = 0, resident_blocks = 0;

  std::int64_t prefill_tokens = 0;
  double prefill_s = 0;
  EngineWork prefill_work = {};

  std::int64_t context = 0;  // tokens that a row of the decode saw, on average
  double decode_steps = 0, decode_s = 0;
  Summary step_s = {};
  EngineWork decode_work = {};

  double mean_step_s() const { return decode_s / decode_steps; }
};
LongResult measure_long(LoadGenerator& load, runtime::EngineClient& client, const LongPlan& plan,
                        PythonRandom& random);

// The least times of it: of computing, and of moving keys and values that the mode has to.
struct LongFloor {
  double compute_s = 0, link_s = 0;
  double seconds() const { return compute_s > link_s ? compute_s : link_s; }
};
// Chunked: a step of so many tokens reads what all steps before it wrote, but what has stayed on the device.
LongFloor prefill_floor(const LongResult& result, const ModelCost& cost, const DeviceSpeed& speed,
                        const LinkSpeed& link, std::int64_t step_tokens);
// Of one step.
LongFloor decode_floor(const LongResult& result, const ModelCost& cost, const DeviceSpeed& speed,
                       const LinkSpeed& link);

}  // namespace nvllm::launcher
