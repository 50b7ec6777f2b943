#include "launcher/generate/finished_output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"

namespace nvllm::launcher {
namespace {

using Json = nlohmann::json;

constexpr const char* kMend = "; pass the input it was begun with, or another --output";

std::string named(std::string_view id) {
  return id.empty() ? "no id" : str("id ", id);
}

}  // namespace

FinishedOutput::FinishedOutput(const std::string& path) : path_(path) {
  if (::access(path.c_str(), F_OK) == 0) reader_.emplace(path);
  advance();
}

FinishedOutput::Record FinishedOutput::parse(std::string_view text) const {
  Record record{.begin = reader_->read_bytes() - text.size() - 1, .text = str(text, '\n')};
  try {
    const Json object = parse_json(text);
    record.answers_line = object.at("line").get<std::uint64_t>();
    if (object.contains("id")) record.id = json_text(object.at("id"));
    if (object.contains("error")) return record;
    record.index = object.at("index").get<std::int32_t>();
    record.prompt = object.at("prompt_token_ids").get<std::vector<std::int32_t>>();
    return record;
  } catch (const Json::exception&) {
    fail("--resume: line ", reader_->number(), " of ", path_,
         " is no answer of generate; pass another "
         "--output");
  }
}

// Reads the next record. A last line without a newline was torn when the run ended.
void FinishedOutput::advance() {
  ahead_.reset();
  if (!reader_ || reader_->next(std::chrono::seconds(0)) != LineReader::Found::line) return;
  if (reader_->torn()) return;
  ahead_ = parse(reader_->line());
}

std::optional<FinishedOutput::Group> FinishedOutput::next_group() {
  if (!ahead_) return std::nullopt;
  Group group;
  const std::uint64_t line = ahead_->answers_line;
  while (ahead_ && ahead_->answers_line == line) {
    group.push_back(std::move(*ahead_));
    advance();
  }
  return group;
}

void FinishedOutput::load_rest() {
  prefix_ended_ = true;
  if (group_) rest_.emplace(group_->front().answers_line, std::move(*group_));
  group_.reset();
  while (auto group = next_group()) {
    rest_.emplace(group->front().answers_line, std::move(*group));
  }
}

void FinishedOutput::check(const Record& record, std::string_view id,
                           const runtime::Request* request) const {
  const auto line = record.answers_line;
  if (record.id != id) {
    fail("--resume: ", path_, " has ", named(record.id), " for line ", line,
         " of the input, which has ", named(id), kMend);
  }
  if (record.index && request == nullptr) {
    fail("--resume: ", path_, " answers line ", line, " of the input, which is no request", kMend);
  }
  if (record.index && record.prompt != request->prompt) {
    fail("--resume: ", path_, " has another prompt for line ", line, " of the input", kMend);
  }
}

bool FinishedOutput::complete(const Group& group, const runtime::Request* request) {
  if (!group.front().index) return group.size() == 1;
  if (group.size() != static_cast<std::size_t>(request->sampling.n)) return false;
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (group[i].index != static_cast<std::int32_t>(i)) return false;
  }
  return true;
}

// Whether the next answers are all of the line; then the prefix grows by them.
bool FinishedOutput::find_in_prefix(std::uint64_t line, std::string_view id,
                                    const runtime::Request* request) {
  if (!group_) group_ = next_group();
  if (!group_ || group_->front().answers_line != line) return false;
  for (const Record& record : *group_) check(record, id, request);
  if (!complete(*group_, request)) return false;
  last_failed_ = !group_->front().index;
  prefix_bytes_ = group_->back().begin + group_->back().text.size();
  group_.reset();
  return true;
}

std::optional<FinishedOutput::Answers> FinishedOutput::find(std::uint64_t line, std::string_view id,
                                                            const runtime::Request* request) {
  if (!prefix_ended_) {
    if (find_in_prefix(line, id, request))
      return Answers{.in_prefix = true, .failed = last_failed_};
    load_rest();
  }
  const auto found = rest_.find(line);
  if (found == rest_.end()) return std::nullopt;
  const Group group = std::move(found->second);
  rest_.erase(found);
  for (const Record& record : group) check(record, id, request);
  if (!complete(group, request)) return std::nullopt;
  Answers answers{.failed = !group.front().index};
  for (const Record& record : group) answers.text += record.text;
  return answers;
}

void FinishedOutput::expect_end(std::uint64_t lines_of_input) {
  if (!prefix_ended_) load_rest();
  if (rest_.empty()) return;
  fail("--resume: ", path_, " answers line ", rest_.begin()->first, " of the input, which has ",
       lines_of_input, " lines", kMend);
}

}  // namespace nvllm::launcher
