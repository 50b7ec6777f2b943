// MockRank: applies step messages as a rank does, without a device, and verifies everything in
// them.
//
// Keys and values at a position depend on all tokens up to it; here they are a hash of these
// tokens. Blocks on the "device" and on the "host" hold such hashes, rows store them, swaps copy
// them. Before a row is computed, everything that it attends to must match the hashes of the
// sequence's own tokens: this detects a block that is used twice, shared wrongly, missing, or lost
// in a swap. States of linear attention work alike: a slot's state is the hash of all tokens whose
// rows it has seen, and a row requires the hash of all tokens before it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/scheduler/scheduler.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// The model: the next token is a function of the hash of all previous ones.
struct MockModel {
  std::int32_t vocabulary = 8;

  static std::uint64_t hash(std::uint64_t of_those_before, std::int32_t token);
  static std::uint64_t hash(std::span<const std::int32_t> tokens);
  std::int32_t next(std::uint64_t hash) const;
  // The log-probability of a token after such a prefix.
  static float logprob(std::uint64_t hash, std::int32_t token);
};

class MockRank {
 public:
  MockRank(const SchedulerLimits& limits, const MockModel& model);

  // Throws an Error if the message is impossible, exceeds a limit, or makes rows read blocks with
  // wrong contents.
  StepResult step(const StepMessage& message);

  // Rows of the last step.
  std::span<const StepRows> rows() const { return rows_; }

 private:
  struct Slot {
    bool taken = false;
    std::vector<std::int32_t> tokens;  // including sampled ones
    std::vector<std::uint64_t> hashes;
    std::int64_t computed = 0;
    std::int64_t sent = 0;  // how many of the tokens came in messages
    std::int64_t prompt = 0;
    bool logprobs = false, prompt_logprobs = false;
    std::int64_t resident = 0;
    std::vector<kvcache::BlockId> table, window_table;

    void append(std::int32_t token);
  };
  using Memory = std::vector<std::uint64_t>;

  Slot& taken(std::uint32_t slot);
  std::uint64_t& at(Memory& memory, std::int64_t block, std::int64_t offset) const;
  // Throws an Error if a place does not exist.
  void copy_states(std::span<const StateCopy> copies, const Memory& from, Memory& to) const;
  void advance_state(const StepRows& rows);
  void copy(std::span<const kvcache::BlockCopy> copies, Memory& from, Memory& to) const;
  void start(const SlotStart& started);
  void take_token(const SlotToken& sampled);
  void set_rows(const StepMessage& message);
  void append_blocks(const StepMessage& message);
  void store(const StepRows& rows);
  // The token at a position must be in the block that the table assigns to it.
  void check_seen(const StepRows& rows, const Slot& slot, Memory& memory,
                  const std::vector<kvcache::BlockId>& table, std::int64_t window);
  void attend(const StepRows& rows, StepResult& result);
  void check_residents() const;

  const SchedulerLimits limits_;
  const MockModel model_;
  Memory device_, host_;
  Memory window_device_, window_host_;  // of the window group
  Memory states_, snapshots_, host_states_;
  std::vector<Slot> slots_;
  std::vector<StepRows> rows_;
  std::uint64_t number_ = 0;
  std::int64_t logit_rows_ = 0;
};

}  // namespace nvllm::runtime
