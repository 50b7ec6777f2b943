#include "runtime/memory/workspace.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "testing/error_of.h"

namespace nvllm::runtime {
namespace {

RunnerOptions options_of(std::int64_t length, std::int64_t rows,
                         std::int64_t micro_batch_rows = 0) {
  RunnerOptions options;
  options.max_model_len = length;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = rows;
  options.max_logit_rows = 72;
  options.micro_batch_rows = micro_batch_rows;
  return options;
}

// The residual stream of all rows, and activations of the rows computed at a time.
std::size_t bytes_of(const RunnerOptions& options) {
  const std::int64_t at_once =
      options.micro_batch_rows > 0 ? options.micro_batch_rows : options.max_num_batched_tokens;
  return static_cast<std::size_t>(options.max_model_len + 10 * options.max_num_batched_tokens +
                                  100 * at_once);
}

std::string refusal(const RunnerOptions& options, std::size_t available) {
  return testing::error_of(
      [&] { require_workspace(options, DeviceKind::cuda, available, bytes_of); });
}

}  // namespace

TEST_CASE("what fits passes, to the byte") {
  const RunnerOptions options = options_of(4096, 8192);
  CHECK(refusal(options, bytes_of(options)) == "");
  CHECK(refusal(options, bytes_of(options) - 1) != "");
}

TEST_CASE("a refusal names the numbers, and the most rows with which half of the room is left") {
  const RunnerOptions options = options_of(4096, 8192);
  CHECK(refusal(options, 500'000) ==
        "activations for steps of 8192 tokens and sequences of 4096 need 884 KiB, there are 488 "
        "KiB beside the "
        "weights; pass --max-num-batched-tokens 2048 or less");
  CHECK(bytes_of(options_of(4096, 2048)) <= 250'000);
  CHECK(bytes_of(options_of(4096, 2304)) > 250'000);
}

TEST_CASE("where prompts are taken whole, fewer rows at a time, or shorter prompts") {
  const RunnerOptions options = options_of(65536, 65536 + 8, 8192);
  CHECK(refusal(options, 1'500'000).ends_with("; pass --max-num-batched-tokens 256 or less"));
  CHECK(refusal(options, 700'000)
            .ends_with("; pass --max-num-batched-tokens 256 and --max-model-len 29440 or less"));
  CHECK(bytes_of(options_of(29440, 29440 + 8, 256)) <= 350'000);
  CHECK(bytes_of(options_of(29696, 29696 + 8, 256)) > 350'000);
  CHECK(refusal(options_of(65536, 65536 + 8, 256), 700'000)
            .ends_with("; pass --max-model-len 29440 or less"));
}

TEST_CASE("where prompts are not taken whole, shorter sequences have steps as large as before") {
  CHECK(refusal(options_of(1'000'000, 256), 700'000)
            .ends_with("; pass --max-model-len 321792 or less"));
  CHECK(bytes_of(options_of(321792, 256)) <= 350'000);
  CHECK(bytes_of(options_of(322048, 256)) > 350'000);
}

TEST_CASE("where no option helps, the device must be larger") {
  CHECK(refusal(options_of(4096, 8192), 1000).ends_with("; use more GPUs (--tp)"));
}

}  // namespace nvllm::runtime
