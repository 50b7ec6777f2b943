#include "runtime/workspace_room.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/text.h"

namespace nvllm::runtime {
namespace {

// Values are multiples of it: what is offered should be easy to read.
constexpr std::int64_t kStep = 256;

// Each of these decides how much memory a runner takes, and is asked for by the option of that name.
struct Knob {
  const char* name;
  std::int64_t (*get)(const RunnerOptions& options);
  void (*set)(RunnerOptions& options, std::int64_t value);
};

// part_rows: a prompt is a step, and --max-num-batched-tokens how much of it is computed at a time.
constexpr Knob kKnobs[] = {
    {"--max-num-batched-tokens",
     [](const RunnerOptions& options) {
       return options.part_rows > 0 ? options.part_rows : options.max_num_batched_tokens;
     },
     [](RunnerOptions& options, std::int64_t value) {
       if (options.part_rows > 0) {
         options.part_rows = value;
       } else {
         options.max_num_batched_tokens = value;
         options.max_logit_rows = std::min(options.max_logit_rows, value);
       }
     }},
    {"--max-model-len", [](const RunnerOptions& options) { return options.max_model_len; },
     [](RunnerOptions& options, std::int64_t value) {
       options.max_model_len = value;
       if (options.part_rows > 0) options.max_num_batched_tokens = value + options.max_num_seqs;
     }},
};

using BytesOf = std::function<std::size_t(const RunnerOptions&)>;

// The greatest value below the present one that fits into the room; 0: none does.
std::int64_t greatest(const Knob& knob, const RunnerOptions& options, std::size_t room,
                      const BytesOf& bytes_of) {
  const auto fits = [&](std::int64_t steps) {
    RunnerOptions less = options;
    knob.set(less, steps * kStep);
    return bytes_of(less) <= room;
  };
  // In steps: `low` fits, `high` does not.
  std::int64_t low = 0, high = (knob.get(options) - 1) / kStep + 1;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low * kStep;
}

// One option, or the first at its least and the second; "" if that does not help.
std::string mend_of(RunnerOptions options, std::size_t room, const BytesOf& bytes_of) {
  std::string mend = "pass ";
  for (const Knob& knob : kKnobs) {
    const std::int64_t value = greatest(knob, options, room, bytes_of);
    if (value > 0) return str(mend, knob.name, " ", value, " or less");
    if (knob.get(options) <= kStep) continue;
    knob.set(options, kStep);
    mend += str(knob.name, " ", kStep, " and ");
  }
  return "";
}

}  // namespace

void require_workspace(const RunnerOptions& options, DeviceKind device, std::size_t available,
                       const std::function<std::size_t(const RunnerOptions&)>& bytes_of) {
  const std::size_t needed = bytes_of(options);
  if (needed <= available) return;
  std::string mend = mend_of(options, available / 2, bytes_of);
  if (mend.empty()) mend = device == DeviceKind::cpu ? "free memory" : "use more GPUs (--tp)";
  fail("activations for steps of ", options.max_num_batched_tokens, " tokens and sequences of ",
       options.max_model_len, " need ", format_bytes(needed), ", there are ",
       format_bytes(available), " beside the weights; ", mend);
}

}  // namespace nvllm::runtime
