// Intake: what `generate` is to do, one piece after the other: prompts of the command line, or lines of a
// file. Lines that an earlier run has answered are passed over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/generate/finished_output.h"
#include "launcher/generate/line_reader.h"
#include "launcher/generate/request_line.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// One line of the input: a request, or why it is none, or the answers that it has already.
struct Task {
  std::uint64_t line = 0;
  std::string id = "";  // as JSON
  std::optional<runtime::Request> request = std::nullopt;
  std::string error = "";
  TextRules text = {};
  std::string answers = "";
  std::uint64_t read_bytes = 0;
};

class Intake {
 public:
  using Prompts = std::vector<std::vector<std::int32_t>>;
  Intake(Prompts prompts, const runtime::SamplingParams& defaults);
  Intake(LineReader reader, const runtime::SamplingParams& defaults);

  // From now on text is understood; before the first next() or resume(). prompts: of the command line, after
  // those of ids. It must outlive this.
  void use_text(const TextInput& text, std::vector<std::string> prompts);

  // From now on what is in that output is not done again. Waits for the first task that is left.
  void resume(const std::string& output);

  enum class Found { task, nothing_yet, end };
  Found next(Nanoseconds limit, Task& task);

  std::uint64_t total_bytes() const { return reader_ ? reader_->total_bytes() : 0; }  // 0: unknown
  // Of the output that is gone on with: how much of it stays, and what is in there.
  std::uint64_t kept_bytes() const { return finished_ ? finished_->prefix_bytes() : 0; }
  std::uint64_t kept_lines() const { return kept_lines_; }  // of the input
  std::uint64_t kept_failures() const { return kept_failures_; }

 private:
  Found read(Nanoseconds limit, Task& task);
  bool recall(Task& task);

  std::vector<std::vector<std::int32_t>> prompts_;
  std::optional<LineReader> reader_;
  runtime::SamplingParams defaults_;
  const TextInput* text_ = nullptr;
  std::uint64_t lines_ = 0;

  std::optional<FinishedOutput> finished_;
  std::optional<Task> first_;  // found by resume()
  std::uint64_t kept_lines_ = 0, kept_failures_ = 0;
};

}  // namespace nvllm::launcher
