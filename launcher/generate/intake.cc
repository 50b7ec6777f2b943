#include "launcher/generate/intake.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

RequestLine parse(const LineReader& reader, const runtime::SamplingParams& defaults,
                  const TextInput* text) {
  if (!reader.too_long()) return parse_request_line(reader.line(), defaults, text);
  return {.id = "",
          .request = std::nullopt,
          .error = str("longer than ", LineReader::kLongestLine >> 20, " MiB")};
}

}  // namespace

Intake::Intake(std::vector<std::vector<std::int32_t>> prompts,
               const runtime::SamplingParams& defaults)
    : prompts_(std::move(prompts)), defaults_(defaults) {}

Intake::Intake(LineReader reader, const runtime::SamplingParams& defaults)
    : reader_(std::move(reader)), defaults_(defaults) {}

void Intake::use_text(const TextInput& text, std::vector<std::string> prompts) {
  text_ = &text;
  for (const std::string& prompt : prompts) prompts_.push_back(text.encode_prompt(prompt));
}

void Intake::resume(const std::string& output) {
  finished_.emplace(output);
  Task task;
  Found found;
  do {
    found = next(std::chrono::seconds(1), task);
  } while (found == Found::nothing_yet);
  if (found == Found::task) first_ = std::move(task);
}

Intake::Found Intake::next(Nanoseconds limit, Task& task) {
  if (first_) {
    task = std::move(*first_);
    first_.reset();
    return Found::task;
  }
  while (true) {
    const Found found = read(limit, task);
    if (found == Found::end && finished_) finished_->expect_end(lines_);
    if (found != Found::task || !recall(task)) return found;
  }
}

// The next line as it is.
Intake::Found Intake::read(Nanoseconds limit, Task& task) {
  if (!reader_) {
    if (lines_ == prompts_.size()) return Found::end;
    task = {.line = lines_ + 1,
            .request = runtime::Request{.prompt = prompts_[lines_], .sampling = defaults_}};
    if (text_ != nullptr) task.text = text_->defaults();
    ++lines_;
    return Found::task;
  }
  while (true) {
    const LineReader::Found found = reader_->next(limit);
    if (found == LineReader::Found::nothing_yet) return Found::nothing_yet;
    if (found == LineReader::Found::end) return Found::end;
    lines_ = reader_->number();
    if (!reader_->too_long() && blank(reader_->line())) continue;
    RequestLine parsed = parse(*reader_, defaults_, text_);
    task = {.line = lines_,
            .id = std::move(parsed.id),
            .request = std::move(parsed.request),
            .error = std::move(parsed.error),
            .text = std::move(parsed.text),
            .read_bytes = reader_->read_bytes()};
    return Found::task;
  }
}

// Whether the task is done and written; otherwise it gets the answers that it has.
bool Intake::recall(Task& task) {
  if (!finished_) return false;
  auto answers = finished_->find(task.line, task.id, task.request ? &*task.request : nullptr);
  if (!answers) return false;
  ++kept_lines_;
  kept_failures_ += answers->failed ? 1 : 0;
  task.answers = std::move(answers->text);
  return answers->in_prefix;
}

}  // namespace nvllm::launcher
