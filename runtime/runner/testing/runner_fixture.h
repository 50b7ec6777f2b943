// For tests of the runner: models with known continuations, and sequences that are driven through a
// runner by step messages alone. Every rank creates the same messages; rank 0 gets the tokens.
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

inline constexpr const char* kUnevenModel = "qwen3-uneven";  // 9 heads, 3 KV heads
inline constexpr std::int64_t kWhole = 1 << 20;  // chunks of this size are whole prompts

// A model of tests/data/golden-models and transformers' greedy continuations of its prompts.
struct GoldenModel {
  struct Prompt {
    std::vector<std::int32_t> ids, continuation;
    std::vector<float> margins;  // difference of the best two logits, for each token
  };

  explicit GoldenModel(const std::string& name);

  std::string name;
  model::Checkpoint checkpoint;
  model::ModelConfig config;
  std::vector<Prompt> prompts;
  std::vector<float> logits;  // of all rows of the first prompt
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
  std::int64_t resident = 0;  // chunked: how many blocks of every sequence stay on the device
  bool invariant = false, whole_sequences = false;
  std::optional<double> host_attention = 0.0;
  std::int64_t host_threads = 2;
  std::int64_t overlap_rows = 0;
  kvcache::OffloadHooks hooks = {};
  Trace* trace = nullptr;
};

// Always the most likely token.
layers::SamplingRules greedy();

class RunnerUnderTest {
 public:
  RunnerUnderTest(testing::DeviceRank& rank, const GoldenModel& golden,
                  const RunnerTestOptions& options);

  static constexpr std::int64_t kMaxLength = 224;

  ModelRunner& runner() { return *runner_; }
  const model::Decoder& decoder() const { return decoder_; }

  // Parts of the next step's message. Starts a sequence in a slot. `prefix`: blocks that already
  // hold the sequence's first tokens.
  RunnerUnderTest& start(std::uint32_t slot, const std::vector<std::int32_t>& tokens,
                         const std::vector<kvcache::BlockId>& prefix = {},
                         const layers::SamplingRules& rules = greedy(),
                         std::int32_t prompt_logprobs = -1);
  // The sequence that was just started keeps this many blocks on the device, at most
  // RunnerTestOptions::resident.
  RunnerUnderTest& keep(std::int64_t blocks);
  RunnerUnderTest& end(std::uint32_t slot);
  // Swaps the slot's blocks out to the host and frees them; any slot may swap them in again.
  // Returns their number.
  std::int64_t swap_out(std::uint32_t slot);
  RunnerUnderTest& swap_in(std::uint32_t slot, const std::vector<std::int32_t>& tokens,
                           std::int64_t blocks);
  RunnerUnderTest& rows(std::uint32_t slot, std::int64_t rows);
  // Copies states of linear attention.
  RunnerUnderTest& copy_states(const StateCopies& copies);

  // Enqueues the step; takes results until at most steps_ahead are left.
  void step();
  // `steps` steps with one row for each slot in use.
  void decode(int steps);
  // Processes the remaining tokens of all sequences, in chunks of at most `chunk` rows per
  // sequence.
  void prefill(std::int64_t chunk);
  // Takes all results.
  void finish();

  // Tokens that a slot's sequence has sampled so far, its blocks, and results with
  // log-probabilities.
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
    std::uint64_t first_step = 0;  // results of earlier steps belong to the slot's previous
                                   // sequence
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

// Describes the first token that differs from the golden ones, unless the margin there was below
// `margin`; empty: none.
std::string why_not_golden(const GoldenModel::Prompt& prompt,
                           const std::vector<std::int32_t>& tokens, float margin);

}  // namespace nvllm::runtime
