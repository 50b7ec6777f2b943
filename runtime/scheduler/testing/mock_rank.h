// MockRank: follows step messages as a rank does, without a device, and believes nothing that they
// say.
//
// Keys and values of a position depend on all tokens up to it; here they are a hash of these
// tokens. Blocks on the "device" and on the "host" hold such hashes, rows store them, swaps copy
// them. Before a row's sequence goes on, everything that the row attends to must be what the
// sequence's own tokens give: a block used twice, shared wrongly, missing, or lost on its way to
// the host and back shows there. So it is with states of linear attention: a slot's is the hash of
// all tokens whose rows it has seen, and a row goes on from that of all tokens before it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/scheduler/scheduler.h"
#include "runtime/scheduler/step.h"

namespace nvllm::runtime {

// The model: what follows some tokens is a function of their hash.
struct MockModel {
  std::int32_t vocabulary = 8;

  static std::uint64_t hash(std::uint64_t of_those_before, std::int32_t token);
  static std::uint64_t hash(std::span<const std::int32_t> tokens);
  std::int32_t next(std::uint64_t hash) const;
  // Of any token after such a prefix.
  static float logprob(std::uint64_t hash, std::int32_t token);
};

class MockRank {
 public:
  MockRank(const SchedulerLimits& limits, const MockModel& model);

  // An Error if the message is impossible, or breaks a limit, or leads rows to blocks that do not
  // hold what they need.
  StepResult step(const StepMessage& message);

  // Rows of the last step.
  std::span<const StepRows> rows() const { return rows_; }

 private:
  struct Slot {
    bool taken = false;
    std::vector<std::int32_t> tokens;  // with those that were sampled
    std::vector<std::uint64_t> hashes;
    std::int64_t computed = 0;
    std::int64_t sent = 0;  // of the tokens, those that messages have told
    std::int64_t prompt = 0;
    bool logprobs = false, prompt_logprobs = false;
    std::int64_t resident = 0;
    std::vector<kvcache::BlockId> table, window_table;

    void append(std::int32_t token);
  };
  using Memory = std::vector<std::uint64_t>;

  Slot& taken(std::uint32_t slot);
  std::uint64_t& at(Memory& memory, std::int64_t block, std::int64_t offset) const;
  // An Error if there are no such places.
  void copy_states(std::span<const StateCopy> copies, const Memory& from, Memory& to) const;
  void advance_state(const StepRows& rows);
  void copy(std::span<const kvcache::BlockCopy> copies, Memory& from, Memory& to) const;
  void start(const SlotStart& started);
  void take_token(const SlotToken& sampled);
  void set_rows(const StepMessage& message);
  void append_blocks(const StepMessage& message);
  void store(const StepRows& rows);
  // The token at a position must be in the block that the table has for it.
  void check_seen(const StepRows& rows, const Slot& slot, Memory& memory,
                  const std::vector<kvcache::BlockId>& table, std::int64_t window);
  void attend(const StepRows& rows, StepResult& result);
  void check_residents() const;

  const SchedulerLimits limits_;
  const MockModel model_;
  Memory device_, host_;
  Memory window_device_, window_host_;  // of the group of windows
  Memory states_, snapshots_, host_states_;
  std::vector<Slot> slots_;
  std::vector<StepRows> rows_;
  std::uint64_t number_ = 0;
  std::int64_t logit_rows_ = 0;
};

}  // namespace nvllm::runtime
