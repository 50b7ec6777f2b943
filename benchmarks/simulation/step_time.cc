#include "benchmarks/simulation/step_time.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace nvllm::simulation {
namespace {

// Ids of sampled tokens are never those of a prompt, and rarely repeat.
constexpr std::int32_t kFirstSampled = 1 << 20, kSampled = 1 << 30;

}  // namespace

StepWork& StepWork::operator+=(const StepWork& other) {
  steps += other.steps;
  decode_rows += other.decode_rows;
  decode_context += other.decode_context;
  prompt_tokens += other.prompt_tokens;
  prompt_pairs += other.prompt_pairs;
  prompt_steps += other.prompt_steps;
  prompt_step_rows += other.prompt_step_rows;
  return *this;
}

double StepTime::decode_seconds(double rows) const {
  const auto above = std::find_if(decode.begin(), decode.end(),
                                  [&](const Decode& known) { return known.rows >= rows; });
  if (above == decode.begin() || above == decode.end()) {
    return decode.empty() ? 0 : (above == decode.end() ? decode.back() : *above).seconds;
  }
  const Decode& below = *std::prev(above);
  return below.seconds +
         (above->seconds - below.seconds) * (rows - below.rows) / (above->rows - below.rows);
}

// Few prefill rows take at least as long as the same number of decode rows.
double StepTime::seconds(const StepWork& step) const {
  const double attention = decode_context * step.decode_context + prompt_pair * step.prompt_pairs;
  const double at_least = decode_seconds(step.decode_rows + step.prompt_tokens);
  return attention +
         std::max(at_least, prompt_step * step.prompt_steps + prompt_row * step.prompt_step_rows);
}

// Either the last step's slots continue with one row each, except ended ones, or the message lists
// all rows.
void SimulatedRank::set_rows(const runtime::StepMessage& message) {
  if (!message.same_rows) {
    rows_ = message.rows;
    return;
  }
  ended_.assign(slots_.size(), 0);
  for (const std::uint32_t slot : message.ended) ended_.at(slot) = 1;
  std::erase_if(rows_, [&](const runtime::StepRows& rows) { return ended_[rows.slot] != 0; });
  for (runtime::StepRows& rows : rows_) rows.rows = 1;
}

StepWork SimulatedRank::follow(const runtime::StepMessage& message) {
  set_rows(message);
  for (const runtime::SlotStart& start : message.started) {
    const auto known = static_cast<std::int64_t>(start.tokens.size());
    slots_.at(start.slot) = {
        .known = known, .computed = start.computed, .decodes = start.computed + 1 == known};
  }
  StepWork work{.steps = 1};
  runtime::StepResult result;
  result.number = message.number;
  for (const runtime::StepRows& rows : rows_) {
    Slot& slot = slots_.at(rows.slot);
    const double before = static_cast<double>(slot.computed), count = rows.rows;
    if (slot.decodes && rows.rows == 1) {
      work.decode_rows += 1;
      work.decode_context += before + 1;
    } else {
      work.prompt_tokens += count;
      work.prompt_pairs += count * (before + (count + 1) / 2);
    }
    slot.computed += rows.rows;
    NVLLM_CHECK(slot.computed <= slot.known, "slot ", rows.slot, " computes tokens it has not");
    if (slot.computed < slot.known) continue;
    slot.decodes = true;
    ++slot.known;
    sampled_ = (sampled_ + 1) % kSampled;
    result.tokens.push_back({rows.slot, kFirstSampled + sampled_, {}});
  }
  if (work.prompt_tokens > 0) {
    work.prompt_steps = 1;
    work.prompt_step_rows = work.prompt_tokens + work.decode_rows;
  }
  results_.push_back(std::move(result));
  return work;
}

runtime::StepResult SimulatedRank::take_result() {
  NVLLM_CHECK(!results_.empty(), "no step is in flight");
  runtime::StepResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

}  // namespace nvllm::simulation
