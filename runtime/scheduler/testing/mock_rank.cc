#include "runtime/scheduler/testing/mock_rank.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace nvllm::runtime {
namespace {

template <typename... Parts>
void require(bool good, const Parts&... parts) {
  if (!good) fail(parts...);
}

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t MockModel::hash(std::uint64_t of_those_before, std::int32_t token) {
  return mix(of_those_before * 31 + static_cast<std::uint64_t>(token) + 1);
}

std::uint64_t MockModel::hash(std::span<const std::int32_t> tokens) {
  std::uint64_t sum = 0;
  for (const std::int32_t token : tokens) sum = hash(sum, token);
  return sum;
}

std::int32_t MockModel::next(std::uint64_t hash) const {
  return static_cast<std::int32_t>(mix(hash) % static_cast<std::uint64_t>(vocabulary));
}

float MockModel::logprob(std::uint64_t hash, std::int32_t token) {
  return -static_cast<float>(mix(hash + static_cast<std::uint64_t>(token)) % 1000);
}

MockRank::MockRank(const SchedulerLimits& limits, const MockModel& model)
    : limits_(limits),
      model_(model),
      device_(static_cast<std::size_t>(limits.blocks * limits.block_size)),
      host_(static_cast<std::size_t>(limits.host_blocks * limits.block_size)),
      window_device_(static_cast<std::size_t>(limits.window_group.blocks * limits.block_size)),
      window_host_(static_cast<std::size_t>(limits.window_group.host_blocks * limits.block_size)),
      states_(limits.states.kept ? static_cast<std::size_t>(limits.max_num_seqs) : 0),
      snapshots_(static_cast<std::size_t>(limits.states.snapshots)),
      host_states_(static_cast<std::size_t>(limits.states.host)),
      slots_(static_cast<std::size_t>(limits.max_num_seqs)) {}

void MockRank::Slot::append(std::int32_t token) {
  hashes.push_back(MockModel::hash(hashes.empty() ? 0 : hashes.back(), token));
  tokens.push_back(token);
}

MockRank::Slot& MockRank::taken(std::uint32_t slot) {
  require(slot < slots_.size() && slots_[slot].taken, "slot ", slot, " holds no sequence");
  return slots_[slot];
}

std::uint64_t& MockRank::at(Memory& memory, std::int64_t block, std::int64_t offset) const {
  const auto index = static_cast<std::size_t>(block * limits_.block_size + offset);
  require(block >= 0 && index < memory.size(), "there is no block ", block);
  return memory[index];
}

void MockRank::copy(std::span<const kvcache::BlockCopy> copies, Memory& from, Memory& to) const {
  std::vector<kvcache::BlockId> targets;
  for (const kvcache::BlockCopy& copy : copies) {
    targets.push_back(copy.to);
    for (std::int64_t i = 0; i < limits_.block_size; ++i)
      at(to, copy.to, i) = at(from, copy.from, i);
  }
  std::sort(targets.begin(), targets.end());
  require(std::adjacent_find(targets.begin(), targets.end()) == targets.end(), "step ", number_,
          ": two copies go to one block");
}

void MockRank::copy_states(std::span<const StateCopy> copies, const Memory& from,
                           Memory& to) const {
  for (const StateCopy& copy : copies) {
    require(copy.from >= 0 && static_cast<std::size_t>(copy.from) < from.size() && copy.to >= 0 &&
                static_cast<std::size_t>(copy.to) < to.size(),
            "step ", number_, " copies states from ", copy.from, " to ", copy.to);
    to[static_cast<std::size_t>(copy.to)] = from[static_cast<std::size_t>(copy.from)];
  }
}

// A sequence's first rows start without a state, whatever the slot contains.
void MockRank::advance_state(const StepRows& rows) {
  const Slot& slot = taken(rows.slot);  // its rows are computed
  const std::int64_t first = slot.computed - rows.rows;
  std::uint64_t& state = states_[rows.slot];
  require(first == 0 || state == slot.hashes[static_cast<std::size_t>(first - 1)], "slot ",
          rows.slot, ": its states are not those behind ", first, " tokens");
  state = slot.hashes[static_cast<std::size_t>(slot.computed - 1)];
}

void MockRank::start(const SlotStart& started) {
  require(started.slot < slots_.size(), "there is no slot ", started.slot);
  Slot& slot = slots_[started.slot];
  require(!slot.taken, "slot ", started.slot, " is taken");
  const auto known = static_cast<std::int64_t>(started.tokens.size());
  require(started.computed >= 0 && started.computed < known, "slot ", started.slot, " starts with ",
          started.computed, " of ", known, " tokens computed");
  slot = {};
  slot.taken = true;
  for (const std::int32_t token : started.tokens) slot.append(token);
  slot.computed = started.computed;
  slot.sent = known;
  slot.prompt = started.rules.prompt_length;
  slot.logprobs = started.rules.logprobs >= 0;
  slot.prompt_logprobs = started.prompt_logprobs >= 0;
  slot.resident = started.resident;
}

void MockRank::take_token(const SlotToken& sampled) {
  Slot& slot = taken(sampled.slot);
  const auto next = static_cast<std::size_t>(slot.sent);
  require(next < slot.tokens.size() && slot.tokens[next] == sampled.token, "slot ", sampled.slot,
          " has not sampled token ", sampled.token, " at ", slot.sent);
  ++slot.sent;
}

void MockRank::set_rows(const StepMessage& message) {
  if (message.same_rows) {
    std::erase_if(rows_, [&](const StepRows& rows) {
      return std::find(message.ended.begin(), message.ended.end(), rows.slot) !=
             message.ended.end();
    });
    for (StepRows& rows : rows_) rows.rows = 1;
  } else {
    rows_ = message.rows;
  }
  std::vector<char> seen(slots_.size());
  std::int64_t total = 0;
  for (const StepRows& rows : rows_) {
    require(rows.rows > 0, "slot ", rows.slot, " has an entry, but no row");
    require(!std::exchange(seen.at(rows.slot), 1), "slot ", rows.slot, " has rows twice");
    total += rows.rows;
  }
  require(total > 0, "step ", message.number, " has no rows");
  require(total <= limits_.max_num_batched_tokens, "step ", message.number, " has ", total,
          " rows");
}

void MockRank::append_blocks(const StepMessage& message) {
  for (const BlockAppend& block : message.blocks) taken(block.slot).table.push_back(block.block);
  for (const BlockAppend& block : message.windows.blocks) {
    require(block.block >= 0 && block.block < limits_.window_group.blocks, "slot ", block.slot,
            " gets block ", block.block, " of the group of windows");
    taken(block.slot).window_table.push_back(block.block);
  }
}

// All rows store their keys and values before any of them attends.
void MockRank::store(const StepRows& rows) {
  Slot& slot = taken(rows.slot);
  require(slot.computed + rows.rows <= static_cast<std::int64_t>(slot.tokens.size()), "slot ",
          rows.slot, " has no token for its row at ", slot.computed + rows.rows - 1);
  require(limits_.stages == 1 || slot.computed + rows.rows <= slot.sent, "slot ", rows.slot,
          ": the first stage has no token for its row at ", slot.computed + rows.rows - 1);
  for (std::int64_t position = slot.computed; position < slot.computed + rows.rows; ++position) {
    const auto entry = static_cast<std::size_t>(position / limits_.block_size);
    require(entry < slot.table.size(), "slot ", rows.slot, " has no block for position ", position);
    const std::uint64_t hash = slot.hashes[static_cast<std::size_t>(position)];
    at(device_, slot.table[entry], position % limits_.block_size) = hash;
    if (limits_.window_group.window == 0) continue;
    require(entry < slot.window_table.size(), "slot ", rows.slot,
            " has no block of the group of windows for position ", position);
    at(window_device_, slot.window_table[entry], position % limits_.block_size) = hash;
  }
}

void MockRank::check_seen(const StepRows& rows, const Slot& slot, Memory& memory,
                          const std::vector<kvcache::BlockId>& table, std::int64_t window) {
  const std::int64_t first = slot.computed - rows.rows;
  const std::int64_t seen = window == 0 ? 0 : std::max<std::int64_t>(first + 1 - window, 0);
  for (std::int64_t position = seen; position < slot.computed; ++position) {
    const auto entry = static_cast<std::size_t>(position / limits_.block_size);
    require(at(memory, table[entry], position % limits_.block_size) ==
                slot.hashes[static_cast<std::size_t>(position)],
            "slot ", rows.slot, ": block ", table[entry], " does not hold its sequence's position ",
            position);
  }
}

void MockRank::attend(const StepRows& rows, StepResult& result) {
  Slot& slot = taken(rows.slot);
  const std::int64_t first = slot.computed;
  slot.computed += rows.rows;
  check_seen(rows, slot, device_, slot.table, limits_.window);
  if (limits_.window_group.window > 0) {
    check_seen(rows, slot, window_device_, slot.window_table, limits_.window_group.window);
  }
  if (limits_.states.kept) advance_state(rows);

  if (slot.prompt_logprobs) {
    StepResult::PromptLogprobs scores{.slot = rows.slot, .tokens = {}};
    for (auto i = static_cast<std::size_t>(first);
         static_cast<std::int64_t>(i) < std::min(slot.computed, slot.prompt - 1); ++i) {
      const std::int32_t token = slot.tokens[i + 1];
      scores.tokens.push_back({.chosen = {.token = token,
                                          .logprob = MockModel::logprob(slot.hashes[i], token),
                                          .rank = 1},
                               .top = {}});
    }
    logit_rows_ += static_cast<std::int64_t>(scores.tokens.size());
    if (!scores.tokens.empty()) result.prompts.push_back(std::move(scores));
  }
  if (slot.computed < static_cast<std::int64_t>(slot.tokens.size())) return;
  const std::uint64_t hash = slot.hashes.back();
  StepResult::Token sampled{.slot = rows.slot, .token = model_.next(hash), .logprobs = {}};
  if (slot.logprobs)
    sampled.logprobs.chosen = {
        .token = sampled.token, .logprob = MockModel::logprob(hash, sampled.token), .rank = 1};
  slot.append(sampled.token);
  result.tokens.push_back(std::move(sampled));
  ++logit_rows_;
}

// Blocks that stay on the device must have slots there.
void MockRank::check_residents() const {
  std::set<kvcache::BlockId> kept;
  for (const Slot& slot : slots_) {
    if (!slot.taken) continue;
    const auto count = std::min(static_cast<std::int64_t>(slot.table.size()), slot.resident);
    kept.insert(slot.table.begin(), slot.table.begin() + count);
  }
  require(static_cast<std::int64_t>(kept.size()) <= limits_.resident_blocks, "step ", number_,
          " keeps ", kept.size(), " blocks on the device");
}

StepResult MockRank::step(const StepMessage& message) {
  require(message.number == number_ + 1, "step ", message.number, " after step ", number_);
  number_ = message.number;
  for (const std::uint32_t slot : message.ended) taken(slot).taken = false;
  copy(message.swap_out, device_, host_);
  copy(message.swap_in, host_, device_);
  copy(message.windows.swap_out, window_device_, window_host_);
  copy(message.windows.swap_in, window_host_, window_device_);
  copy_states(message.states.swap_out, states_, host_states_);
  copy_states(message.states.swap_in, host_states_, states_);
  copy_states(message.states.restore, snapshots_, states_);
  for (const SlotStart& started : message.started) start(started);
  append_blocks(message);
  require(limits_.stages > 1 || message.tokens.empty(), "tokens that the device has");
  for (const SlotToken& sampled : message.tokens) take_token(sampled);
  set_rows(message);
  check_residents();

  StepResult result;
  result.number = message.number;
  logit_rows_ = 0;
  for (const StepRows& rows : rows_) store(rows);
  for (const StepRows& rows : rows_) attend(rows, result);
  copy_states(message.states.save, states_, snapshots_);
  require(logit_rows_ <= limits_.max_logit_rows, "step ", message.number, " wants logits of ",
          logit_rows_, " rows");
  return result;
}

}  // namespace nvllm::runtime
