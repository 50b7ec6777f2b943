// FinishedOutput: what an earlier run has left in the output, for one that goes on with it.
//
// An output is a prefix with all answers to the first lines of the input, then maybe some answers to later
// lines: they were done when the run ended, while an earlier one was not. The prefix stays as it is. The
// rest is kept in memory and written again in its place.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/generate/line_reader.h"
#include "runtime/request.h"

namespace nvllm::launcher {

class FinishedOutput {
 public:
  // The file may be missing: then nothing is finished.
  explicit FinishedOutput(const std::string& path);

  struct Answers {
    bool in_prefix = false;  // they stay where they are
    bool failed = false;     // it is an error line
    std::string text = "";   // otherwise: all lines
  };
  // All answers to a line of the input; nothing if some are missing. Lines must be asked for in ascending
  // order. request: null for a line that is none. An Error if they answer something else.
  std::optional<Answers> find(std::uint64_t line, std::string_view id,
                              const runtime::Request* request);

  // The input has no more lines. An Error if there are answers to others.
  void expect_end(std::uint64_t lines_of_input);

  // Where the prefix ends. Everything after it is in memory as soon as find() has returned nothing once,
  // or expect_end() has returned.
  std::uint64_t prefix_bytes() const { return prefix_bytes_; }

 private:
  struct Record {
    std::uint64_t answers_line = 0;                    // of the input
    std::uint64_t begin = 0;                           // in the file
    std::string id = "";                               // as JSON
    std::optional<std::int32_t> index = std::nullopt;  // absent: an error line
    std::vector<std::int32_t> prompt = {};
    std::string text = "";
  };
  using Group = std::vector<Record>;  // answers to one line

  Record parse(std::string_view text) const;
  void advance();
  std::optional<Group> next_group();
  bool find_in_prefix(std::uint64_t line, std::string_view id, const runtime::Request* request);
  void load_rest();
  void check(const Record& record, std::string_view id, const runtime::Request* request) const;
  static bool complete(const Group& group, const runtime::Request* request);

  std::string path_;
  std::optional<LineReader> reader_;
  std::optional<Record> ahead_;  // read, and of no group yet
  std::optional<Group> group_;   // at the end of the prefix
  bool last_failed_ = false;     // what find_in_prefix() found last is an error line
  bool prefix_ended_ = false;
  std::uint64_t prefix_bytes_ = 0;
  std::map<std::uint64_t, Group> rest_;
};

}  // namespace nvllm::launcher
