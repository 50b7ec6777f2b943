#include "runtime/runner/testing/runner_fixture.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "base/json_text.h"
#include "base/text.h"
#include "kvcache/chunked/device_slots.h"
#include "model/loading/loader.h"
#include "testing/golden.h"

namespace nvllm::runtime {

GoldenModel::GoldenModel(const std::string& name)
    : name(name),
      checkpoint(model::open_checkpoint("tests/data/golden-models/" + name)),
      config(model::parse_config(checkpoint.config_json(), "", name)) {
  std::ifstream file("tests/data/golden-models/" + name + "/expected.json");
  const auto json = read_json(file);
  // With dynamic NTK scaling, the runs that use one table for all lengths.
  const auto& runs = json.contains("static") ? json["static"] : json["prompts"];
  for (std::size_t i = 0; i < runs.size(); ++i) {
    prompts.push_back({json["prompts"][i]["ids"], runs[i]["continuation"], runs[i]["margins"]});
  }
  logits = testing::read_golden("tests/data/golden-models/" + name + "/expected.safetensors")
               .at("prompt0.logits")
               .values;
}

layers::SamplingRules greedy() {
  layers::SamplingRules rules;
  rules.temperature = 0;
  return rules;
}

RunnerUnderTest::RunnerUnderTest(testing::DeviceRank& rank, const GoldenModel& golden,
                                 const RunnerTestOptions& options)
    : rank_(rank),
      options_(options),
      decoder_(golden.config, {rank.member.rank(), rank.member.size()}, options.dtype),
      weights_(model::bind_parameters(decoder_.parameters(), options.dtype, *rank.backend)),
      free_(static_cast<std::size_t>(options.blocks)),
      references_(static_cast<std::size_t>(options.blocks)) {
  model::load_parameters(decoder_.parameters(), golden.checkpoint, *rank.backend, {});
  runner_ = std::make_unique<ModelRunner>(decoder_, *rank.backend, *rank.stream,
                                          Peers{rank.communicator.get(), rank.link.get()},
                                          RunnerOptions{.max_model_len = kMaxLength,
                                                        .max_num_seqs = options.slots,
                                                        .max_num_batched_tokens = options.rows,
                                                        .max_logit_rows = options.logit_rows,
                                                        .block_size = options.block_size,
                                                        .graphs = options.graphs,
                                                        .keeps_results = rank.member.rank() == 0,
                                                        .steps_ahead = options.steps_ahead,
                                                        .kv_mode = options.kv_mode,
                                                        .kv_cache_dtype = options.kv_cache_dtype,
                                                        .ring_slots = options.ring_slots,
                                                        .host_attention = options.host_attention,
                                                        .host_threads = options.host_threads,
                                                        .invariant = options.invariant,
                                                        .whole_sequences = options.whole_sequences,
                                                        .overlap_rows = options.overlap_rows,
                                                        .offload_hooks = options.hooks},
                                          options.trace);
  if (options.overlap_rows > 0) runner_->open_overlap();
  runner_->make_cache(
      {.blocks = options.blocks,
       .host_blocks = options.kv_mode == KvMode::paged ? options.host_blocks : 0,
       .device_slots = kvcache::max_write_slots(options.slots, options.rows, options.block_size) +
                       options.slots * options.resident,
       .state_snapshots = options.state_snapshots,
       .host_states = options.host_states});
  // Consecutive blocks of a sequence are not adjacent in memory.
  for (std::size_t i = 0; i < free_.size(); ++i) {
    free_[i] = static_cast<kvcache::BlockId>(i * 23 % free_.size());
  }
  NVLLM_CHECK_EQ(std::gcd(std::int64_t{23}, options.blocks), 1);
}

RunnerUnderTest& RunnerUnderTest::start(std::uint32_t slot, const std::vector<std::int32_t>& tokens,
                                        const std::vector<kvcache::BlockId>& prefix,
                                        const layers::SamplingRules& rules,
                                        std::int32_t prompt_logprobs) {
  Sequence& sequence = sequences_[slot] = {};
  sequence.known = static_cast<std::int64_t>(tokens.size());
  sequence.computed = static_cast<std::int64_t>(prefix.size()) * options_.block_size;
  sequence.first_step = steps_ + 1;
  layers::SamplingRules own = rules;
  if (own.prompt_length == 0) own.prompt_length = static_cast<std::int32_t>(tokens.size());
  message_.started.push_back({.slot = slot,
                              .tokens = tokens,
                              .computed = static_cast<std::int32_t>(sequence.computed),
                              .rules = own,
                              .prompt_logprobs = prompt_logprobs,
                              .resident = static_cast<std::int32_t>(options_.resident)});
  for (const kvcache::BlockId block : prefix) {
    ++references_[static_cast<std::size_t>(block)];
    sequence.blocks.push_back(block);
    message_.blocks.push_back({slot, block});
  }
  return *this;
}

RunnerUnderTest& RunnerUnderTest::keep(std::int64_t blocks) {
  NVLLM_CHECK_LE(blocks, options_.resident);
  message_.started.back().resident = static_cast<std::int32_t>(blocks);
  return *this;
}

void RunnerUnderTest::free_blocks(Sequence& sequence) {
  for (const kvcache::BlockId block : sequence.blocks) {
    if (--references_[static_cast<std::size_t>(block)] == 0) free_.push_back(block);
  }
  sequence.blocks.clear();
}

RunnerUnderTest& RunnerUnderTest::end(std::uint32_t slot) {
  free_blocks(sequences_.at(slot));
  sequences_.erase(slot);
  message_.ended.push_back(slot);
  return *this;
}

std::int64_t RunnerUnderTest::swap_out(std::uint32_t slot) {
  const std::vector<kvcache::BlockId> blocks = sequences_.at(slot).blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    message_.swap_out.push_back({blocks[i], static_cast<kvcache::BlockId>(blocks.size() - 1 - i)});
  }
  end(slot);
  return static_cast<std::int64_t>(blocks.size());
}

RunnerUnderTest& RunnerUnderTest::swap_in(std::uint32_t slot,
                                          const std::vector<std::int32_t>& tokens,
                                          std::int64_t blocks) {
  start(slot, tokens);
  Sequence& sequence = sequences_[slot];
  sequence.computed = sequence.known - 1;  // the last sampled token has not been processed
  message_.started.back().computed = static_cast<std::int32_t>(sequence.computed);
  for (std::int64_t i = 0; i < blocks; ++i) {
    grow(slot, (i + 1) * options_.block_size);
    message_.swap_in.push_back(
        {static_cast<kvcache::BlockId>(blocks - 1 - i), sequence.blocks.back()});
  }
  return *this;
}

void RunnerUnderTest::grow(std::uint32_t slot, std::int64_t tokens) {
  Sequence& sequence = sequences_.at(slot);
  while (static_cast<std::int64_t>(sequence.blocks.size()) * options_.block_size < tokens) {
    NVLLM_CHECK(!free_.empty());
    const kvcache::BlockId block = free_.front();
    free_.erase(free_.begin());
    references_[static_cast<std::size_t>(block)] = 1;
    sequence.blocks.push_back(block);
    message_.blocks.push_back({slot, block});
  }
}

RunnerUnderTest& RunnerUnderTest::rows(std::uint32_t slot, std::int64_t rows) {
  Sequence& sequence = sequences_.at(slot);
  grow(slot, sequence.computed + rows);
  sequence.computed += rows;
  message_.rows.push_back({slot, static_cast<std::uint32_t>(rows)});
  return *this;
}

RunnerUnderTest& RunnerUnderTest::copy_states(const StateCopies& copies) {
  message_.states = copies;
  return *this;
}

void RunnerUnderTest::step() {
  // As the scheduler's messages: empty if the rows are those of the last step.
  std::vector<std::uint32_t> again, now;
  for (const std::uint32_t slot : last_rows_) {
    const bool ended = std::count(message_.ended.begin(), message_.ended.end(), slot) > 0;
    if (!ended) again.push_back(slot);
  }
  bool single = true;
  for (const StepRows& rows : message_.rows) {
    now.push_back(rows.slot);
    single = single && rows.rows == 1;
  }
  last_rows_ = now;
  if (single && now == again) {
    message_.same_rows = true;
    message_.rows.clear();
  }
  message_.number = ++steps_;
  runner_->step(message_);
  message_ = {};
  ++in_flight_;
  while (in_flight_ > options_.steps_ahead) take();
}

void RunnerUnderTest::take() {
  --in_flight_;
  if (rank_.member.rank() > 0) return;
  const StepResult result = runner_->take_result();
  for (const StepResult::Token& token : result.tokens) {
    const auto found = sequences_.find(token.slot);
    if (found == sequences_.end() || result.number < found->second.first_step) continue;
    found->second.sampled.push_back(token.token);
  }
  results_.push_back(result);
}

void RunnerUnderTest::decode(int steps) {
  for (int i = 0; i < steps; ++i) {
    for (const auto& sequence : sequences_) rows(sequence.first, 1);
    step();
  }
}

void RunnerUnderTest::prefill(std::int64_t chunk) {
  for (bool more = true; more;) {
    more = false;
    for (const auto& [slot, sequence] : sequences_) {
      const std::int64_t left = std::min(chunk, sequence.known - sequence.computed);
      if (left <= 0) continue;
      rows(slot, left);
      more = true;
    }
    if (more) step();
  }
}

void RunnerUnderTest::finish() {
  while (in_flight_ > 0) take();
  rank_.wait();
}

std::string why_not_golden(const GoldenModel::Prompt& prompt,
                           const std::vector<std::int32_t>& tokens, float margin) {
  for (std::size_t i = 0; i < std::min(tokens.size(), prompt.continuation.size()); ++i) {
    if (tokens[i] == prompt.continuation[i]) continue;
    if (prompt.margins[i] <= margin) return {};  // from here on the texts may differ
    return str("token ", i, " is ", tokens[i], ", not ", prompt.continuation[i], ", of margin ",
               prompt.margins[i]);
  }
  return {};
}

}  // namespace nvllm::runtime
