#include "launcher/generate/request_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "launcher/generate/batch.h"

namespace nvllm::launcher {

namespace {

using Json = nlohmann::json;

constexpr const char* kFix = "; pass the input that it was written for, or another --output";

std::string named(std::string_view id) {
  return id.empty() ? "no id" : str("id ", id);
}

}  // namespace

EarlierOutput::EarlierOutput(const std::string& path) : path_(path) {
  if (::access(path.c_str(), F_OK) == 0) reader_.emplace(path);
  advance();
}

EarlierOutput::Record EarlierOutput::parse(std::string_view text) const {
  Record record{.begin = reader_->read_bytes() - text.size() - 1, .text = str(text, '\n')};
  try {
    const Json object = parse_json(text);
    if (const auto answer = read_batch_answer(object)) {
      record.batch = true;
      record.answers_line = answer->line;
      record.id = answer->custom_id;
      record.hash = answer->request_hash;
      if (!answer->failed) record.index = 0;
      return record;
    }
    record.answers_line = object.at("line").get<std::uint64_t>();
    if (object.contains("id")) record.id = json_text(object.at("id"));
    if (object.contains("request_hash")) record.hash = object["request_hash"].get<std::string>();
    if (object.contains("error")) return record;
    record.index = object.at("index").get<std::int32_t>();
    record.prompt = object.at("prompt_token_ids").get<std::vector<std::int32_t>>();
    return record;
  } catch (const Json::exception&) {
    fail("--resume: line ", reader_->number(), " of ", path_,
         " is no answer of generate; pass another --output");
  }
}

// Reads the next record. A last line without a newline is incomplete and ignored.
void EarlierOutput::advance() {
  ahead_.reset();
  if (!reader_ || reader_->next(std::chrono::seconds(0)) != LineReader::Found::line) return;
  if (reader_->torn()) return;
  ahead_ = parse(reader_->line());
}

std::optional<EarlierOutput::Group> EarlierOutput::next_group() {
  if (!ahead_) return std::nullopt;
  Group group;
  const std::uint64_t line = ahead_->answers_line;
  while (ahead_ && ahead_->answers_line == line) {
    group.push_back(std::move(*ahead_));
    advance();
  }
  return group;
}

void EarlierOutput::load_rest() {
  prefix_ended_ = true;
  if (group_) rest_.emplace(group_->front().answers_line, std::move(*group_));
  group_.reset();
  while (auto group = next_group()) {
    rest_.emplace(group->front().answers_line, std::move(*group));
  }
}

// Whether the line is not what was answered. Outputs of earlier versions do not say.
bool EarlierOutput::changed(const Record& record, const RequestLine& parsed) {
  return !record.hash.empty() && record.hash != parsed.hash;
}

void EarlierOutput::check(const Record& record, const RequestLine& parsed) const {
  const auto line = record.answers_line;
  if (!record.index && changed(record, parsed)) return;  // the corrected line is run
  if (record.id != parsed.id) {
    fail("--resume: ", path_, " has ", named(record.id), " for line ", line,
         " of the input, which has ", named(parsed.id), kFix);
  }
  if (record.index && !parsed.request && !parsed.batch_request) {
    fail("--resume: ", path_, " answers line ", line, " of the input, which is no request", kFix);
  }
  if (record.batch != parsed.batch) {
    fail("--resume: ", path_, " has ", record.batch ? "an" : "no", " answer of a batch for line ",
         line, " of the input, which is ", parsed.batch ? "" : "not ", "of one", kFix);
  }
  if (record.index && parsed.request && record.prompt != parsed.request->prompt) {
    fail("--resume: ", path_, " has another prompt for line ", line, " of the input", kFix);
  }
  if (changed(record, parsed)) {
    fail("--resume: ", path_, " answers line ", line, " of the input with other fields than it has",
         " now (request_hash ", record.hash, ", now ", parsed.hash,
         "); remove the answer to have a new one, or pass the input that it was written for");
  }
}

bool EarlierOutput::complete(const Group& group, const RequestLine& parsed) {
  if (!group.front().index && changed(group.front(), parsed)) return false;
  if (!group.front().index || group.front().batch) return group.size() == 1;
  if (group.size() != static_cast<std::size_t>(parsed.request->sampling.n)) return false;
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (group[i].index != static_cast<std::int32_t>(i)) return false;
  }
  return true;
}

// True if the next group has all answers to the line; then it becomes part of the prefix.
bool EarlierOutput::find_in_prefix(std::uint64_t line, const RequestLine& parsed) {
  if (!group_) group_ = next_group();
  if (!group_ || group_->front().answers_line != line) return false;
  for (const Record& record : *group_) check(record, parsed);
  if (!complete(*group_, parsed)) return false;
  last_failed_ = !group_->front().index;
  prefix_bytes_ = group_->back().begin + group_->back().text.size();
  group_.reset();
  return true;
}

std::optional<EarlierOutput::Answers> EarlierOutput::find(std::uint64_t line,
                                                          const RequestLine& parsed) {
  if (!prefix_ended_) {
    if (find_in_prefix(line, parsed)) return Answers{.in_prefix = true, .failed = last_failed_};
    load_rest();
  }
  const auto found = rest_.find(line);
  if (found == rest_.end()) return std::nullopt;
  const Group group = std::move(found->second);
  rest_.erase(found);
  for (const Record& record : group) check(record, parsed);
  if (!complete(group, parsed)) return std::nullopt;
  Answers answers{.failed = !group.front().index};
  for (const Record& record : group) answers.text += record.text;
  return answers;
}

void EarlierOutput::expect_end(std::uint64_t lines_of_input) {
  if (!prefix_ended_) load_rest();
  if (rest_.empty()) return;
  fail("--resume: ", path_, " answers line ", rest_.begin()->first, " of the input, which has ",
       lines_of_input, " lines", kFix);
}

namespace {

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

RequestLine parse(const LineReader& reader, const runtime::SamplingParams& defaults,
                  const TextInput* text) {
  if (!reader.too_long()) return parse_request_line(reader.line(), defaults, text);
  return {.error = str("longer than ", LineReader::kMaxLine >> 20, " MiB")};
}

}  // namespace

RequestSource::RequestSource(std::vector<std::vector<std::int32_t>> prompts,
                             const runtime::SamplingParams& defaults)
    : defaults_(defaults) {
  for (std::vector<std::int32_t>& ids : prompts) prompts_.push_back({.ids = std::move(ids)});
}

RequestSource::RequestSource(LineReader reader, const runtime::SamplingParams& defaults)
    : reader_(std::move(reader)), defaults_(defaults) {}

void RequestSource::use_text(const TextInput& text, std::vector<std::string> prompts) {
  text_ = &text;
  for (const std::string& prompt : prompts) {
    Prompt& next = prompts_.emplace_back();
    try {
      next.ids = text.encode_prompt(prompt);
    } catch (const std::exception& error) {  // affects this prompt only
      next.error = error.what();
    }
  }
}

Task RequestSource::prompt_task(const Prompt& prompt) const {
  Task task{.line = lines_ + 1};
  task.parsed.error = prompt.error;
  if (!prompt.error.empty()) return task;
  task.parsed.request = runtime::Request{.prompt = prompt.ids, .sampling = defaults_};
  if (text_ != nullptr) task.parsed.text = text_->defaults();
  return task;
}

void RequestSource::resume(const std::string& output) {
  finished_.emplace(output);
  Task task;
  Found found;
  do {
    found = next(std::chrono::seconds(1), task);
  } while (found == Found::nothing_yet);
  if (found == Found::task) first_ = std::move(task);
}

RequestSource::Found RequestSource::next(Nanoseconds limit, Task& task) {
  if (first_) {
    task = std::move(*first_);
    first_.reset();
    return Found::task;
  }
  while (true) {
    const Found found = read(limit, task);
    if (found == Found::end && finished_) finished_->expect_end(lines_);
    if (found != Found::task || !find_answers(task)) return found;
  }
}

// Reads the next line.
RequestSource::Found RequestSource::read(Nanoseconds limit, Task& task) {
  if (!reader_) {
    if (lines_ == prompts_.size()) return Found::end;
    task = prompt_task(prompts_[lines_]);
    ++lines_;
    return Found::task;
  }
  while (true) {
    const LineReader::Found found = reader_->next(limit);
    if (found == LineReader::Found::nothing_yet) return Found::nothing_yet;
    if (found == LineReader::Found::end) return Found::end;
    lines_ = reader_->number();
    if (!reader_->too_long() && blank(reader_->line())) continue;
    task = {.line = lines_,
            .parsed = parse(*reader_, defaults_, text_),
            .read_bytes = reader_->read_bytes()};
    // A line that cannot be parsed is answered in the format of the previous lines.
    if (!task.parsed.error.empty() && task.parsed.id.empty()) task.parsed.batch |= in_batch_;
    in_batch_ = task.parsed.batch;
    return Found::task;
  }
}

// True if all answers to the task are in the file already; otherwise the task gets the existing
// ones.
bool RequestSource::find_answers(Task& task) {
  if (!finished_) return false;
  auto answers = finished_->find(task.line, task.parsed);
  if (!answers) return false;
  ++kept_lines_;
  kept_failures_ += answers->failed ? 1 : 0;
  task.answers = std::move(answers->text);
  return answers->in_prefix;
}

}  // namespace nvllm::launcher
