// RequestSource: the sequence of requests that `generate` answers: prompts of the command line, or
// lines of a file. With --resume it skips those that an earlier run has answered.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/generate/request_line.h"
#include "launcher/session/text_io.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// EarlierOutput: the output of an earlier run that --resume continues.
//
// Such an output starts with all answers to the first lines of the input (the prefix). Answers to
// later lines may follow, if they were finished when the run ended but an earlier one was not. The
// prefix stays in the file. The rest is kept in memory and written again in its place.
class EarlierOutput {
 public:
  // If the file does not exist, there are no answers.
  explicit EarlierOutput(const std::string& path);

  struct Answers {
    bool in_prefix = false;  // whether they stay in the file
    bool failed = false;     // whether it is an error line
    std::string text = "";   // otherwise: all lines
  };
  // All answers to an input line; nullopt if some are missing, or if it was answered by an error
  // and has changed since. Must be called in ascending order of lines. Throws an Error if the
  // answers belong to another request.
  std::optional<Answers> find(std::uint64_t line, const RequestLine& parsed);

  // Call at the end of the input. Throws an Error if there are answers to further lines.
  void expect_end(std::uint64_t lines_of_input);

  // Where the prefix ends. Everything after it is in memory once find() has returned nullopt, or
  // expect_end() has returned.
  std::uint64_t prefix_bytes() const { return prefix_bytes_; }

 private:
  struct Record {
    std::uint64_t answers_line = 0;                    // in the input
    std::uint64_t begin = 0;                           // in the file
    std::string id = "";                               // as JSON
    std::optional<std::int32_t> index = std::nullopt;  // absent: an error line
    std::vector<std::int32_t> prompt = {};
    bool batch = false;     // a batch line, which has no index and no prompt
    std::string hash = "";  // of the request, as in RequestLine; empty: not known
    std::string text = "";
  };
  using Group = std::vector<Record>;  // answers to one line

  Record parse(std::string_view text) const;
  void advance();
  std::optional<Group> next_group();
  bool find_in_prefix(std::uint64_t line, const RequestLine& parsed);
  void load_rest();
  static bool changed(const Record& record, const RequestLine& parsed);
  void check(const Record& record, const RequestLine& parsed) const;
  static bool complete(const Group& group, const RequestLine& parsed);

  std::string path_;
  std::optional<LineReader> reader_;
  std::optional<Record> ahead_;  // read ahead, not yet part of a group
  std::optional<Group> group_;   // the group at the end of the prefix
  bool last_failed_ = false;     // whether the last result of find_in_prefix() is an error line
  bool prefix_ended_ = false;
  std::uint64_t prefix_bytes_ = 0;
  std::map<std::uint64_t, Group> rest_;
};

// One input line: a request, an error, or existing answers.
struct Task {
  std::uint64_t line = 0;
  RequestLine parsed = {};
  std::string answers = "";
  std::uint64_t read_bytes = 0;
};

class RequestSource {
 public:
  using Prompts = std::vector<std::vector<std::int32_t>>;
  RequestSource(Prompts prompts, const runtime::SamplingParams& defaults);
  RequestSource(LineReader reader, const runtime::SamplingParams& defaults);

  // From now on text is accepted. Must be called before next() and resume(); `text` must outlive
  // this object. prompts: those of the command line, which follow the ones given as token ids.
  void use_text(const TextInput& text, std::vector<std::string> prompts);

  // Skips what that output already contains. Waits for the first remaining task.
  void resume(const std::string& output);

  enum class Found { task, nothing_yet, end };
  Found next(Nanoseconds limit, Task& task);

  std::uint64_t total_bytes() const { return reader_ ? reader_->total_bytes() : 0; }  // 0: unknown
  // About the output being resumed: how many bytes of it stay, and the number of lines they answer.
  std::uint64_t kept_bytes() const { return finished_ ? finished_->prefix_bytes() : 0; }
  std::uint64_t kept_lines() const { return kept_lines_; }  // of the input
  std::uint64_t kept_failures() const { return kept_failures_; }

 private:
  struct Prompt {
    std::vector<std::int32_t> ids = {};
    std::string error = "";  // if they are invalid
  };

  Found read(Nanoseconds limit, Task& task);
  Task prompt_task(const Prompt& prompt) const;
  bool find_answers(Task& task);

  std::vector<Prompt> prompts_;  // of the command line
  std::optional<LineReader> reader_;
  runtime::SamplingParams defaults_;
  const TextInput* text_ = nullptr;
  std::uint64_t lines_ = 0;
  bool in_batch_ = false;  // whether the last line is a batch line

  std::optional<EarlierOutput> finished_;
  std::optional<Task> first_;  // found by resume()
  std::uint64_t kept_lines_ = 0, kept_failures_ = 0;
};

}  // namespace nvllm::launcher
