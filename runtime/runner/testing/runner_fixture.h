// For tests of the runner: models with known continuations, and sequences that are driven through a
// runner by step messages alone. Every rank makes the same messages; tokens come back on rank 0.
//
//   const GoldenModel golden("qwen3-uneven");
//   RunnerUnderTest runner(rank, golden, {.graphs = true});
//   runner.start(0, golden.prompts[0].ids);
//   runner.rows(0, 7).step();                  // a prompt of 7 tokens, which samples one
//   runner.decode(5);                          // five steps of all slots
//   runner.tokens(0)                           // six tokens, on rank 0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/trace.h"
#include "model/checkpoint/checkpoint.h"
#include "model/decoder.h"
#include "runtime/runner/model_runner.h"
#include "testing/device_ranks.h"

namespace nvllm::runtime {

// A model of tests/data/golden-models and what transformers' greedy choice makes of its prompts.
struct GoldenModel {
  struct Prompt {
    std::vector<std::int32_t> ids, continuation;
    std::vector<float> margins;  // between the best logit and the second, for each token
  };

  explicit GoldenModel(const std::string& name);

  std::string name;
  model::Checkpoint checkpoint;
  model::ModelConfig config;
  std::vector<Prompt> prompts;
  std::vector<float> logits;  // of all the first prompt's rows
};

struct RunnerTestOptions {
  DType dtype = DType::f32;
  std::int64_t slots = 4;
  std::int64_t rows = 224;
  std::int64_t logit_rows = 224;
  std::int64_t blocks = 64, host_blocks = 32;
  std::int64_t state_snapshots = 0, host_states = 0;
  std::int64_t block_size = 16;
  bool graphs = true;
  int steps_ahead = 1;
  KvMode kv_mode = KvMode::paged;
  KvCacheDtype kv_cache_dtype = KvCacheDtype::automatic;
  std::int64_t ring_slots = 2;
  std::int64_t resident = 0;  // chunked: so many blocks of every sequence stay on the device
  bool whole_sequences = false;
  std::optional<double> host_attention = 0.0;
  std::int64_t host_threads = 2;
  std::int64_t overlap_rows = 0;
  kvcache::OffloadHooks hooks = {};
  Trace* trace = nullptr;
};

// The most likely token, always.
layers::SamplingRules greedy();

class RunnerUnderTest {
 public:
  RunnerUnderTest(testing::DeviceRank& rank, const GoldenModel& golden,
                  const RunnerTestOptions& options);

  static constexpr std::int64_t kMaxLength = 224;

  ModelRunner& runner() { return *runner_; }
  const model::Decoder& decoder() const { return decoder_; }

  // Parts of the next step's message. A sequence takes a slot. `prefix`: blocks whose tokens are
  // the sequence's first ones, computed already.
  RunnerUnderTest& start(std::uint32_t slot, const std::vector<std::int32_t>& tokens,
                         const std::vector<kvcache::BlockId>& prefix = {},
                         const layers::SamplingRules& rules = greedy(),
                         std::int32_t prompt_logprobs = -1);
  // The sequence that has just been started keeps so many blocks on the device, at most
  // RunnerTestOptions::resident.
  RunnerUnderTest& keep(std::int64_t blocks);
  RunnerUnderTest& end(std::uint32_t slot);
  // The slot's blocks go to the host and are free; another one may have them back. Returns how
  // many.
  std::int64_t swap_out(std::uint32_t slot);
  RunnerUnderTest& swap_in(std::uint32_t slot, const std::vector<std::int32_t>& tokens,
                           std::int64_t blocks);
  RunnerUnderTest& rows(std::uint32_t slot, std::int64_t rows);
  // Copies of states of linear attention.
  RunnerUnderTest& copy_states(const StateCopies& copies);

  // Enqueues it; takes results until no more than steps_ahead are left.
  void step();
  // So many steps of one row of each slot in use.
  void decode(int steps);
  // Whatever is left of what was started, in chunks of at most so many rows a step and sequence.
  void prefill(std::int64_t chunk);
  // Takes all results.
  void finish();

  // What a slot's sequence has sampled so far, its blocks, and results that had more than tokens.
  const std::vector<std::int32_t>& tokens(std::uint32_t slot) { return sequences_[slot].sampled; }
  const std::vector<kvcache::BlockId>& blocks(std::uint32_t slot) {
    return sequences_[slot].blocks;
  }
  const std::vector<StepResult>& results() const { return results_; }

 private:
  struct Sequence {
    std::int64_t known = 0, computed = 0;
    std::vector<kvcache::BlockId> blocks, swapped;
    std::vector<std::int32_t> sampled;
    std::uint64_t first_step = 0;  // results of steps before are of the slot's last sequence
  };

  void take();
  void grow(std::uint32_t slot, std::int64_t tokens);
  void free_blocks(Sequence& sequence);

  testing::DeviceRank& rank_;
  RunnerTestOptions options_;
  model::Decoder decoder_;
  Buffer weights_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<kvcache::BlockId> free_;
  std::vector<std::int32_t> references_;
  std::map<std::uint32_t, Sequence> sequences_;
  std::vector<std::uint32_t> last_rows_;
  StepMessage message_;
  std::uint64_t steps_ = 0;
  int in_flight_ = 0;
  std::vector<StepResult> results_;
};

// Why tokens are not the golden ones: the first other token, unless the choice was closer than
// `margin`; empty: they are.
std::string why_not_golden(const GoldenModel::Prompt& prompt,
                           const std::vector<std::int32_t>& tokens, float margin);

}  // namespace nvllm::runtime
