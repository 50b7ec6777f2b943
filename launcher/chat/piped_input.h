// Prompts from a standard input that is no terminal: with_standard_input() appends it to the
// command line's prompt, LineAnswers answers each of its lines as a separate prompt.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "launcher/chat/conversation.h"
#include "launcher/chat/streamed_answer.h"
#include "launcher/cli/options.h"
#include "launcher/session/engine_session.h"
#include "launcher/session/text_io.h"

namespace nvllm::launcher {

// The prompt; if standard input is a nonempty file or pipe, an empty line and its text are
// appended, as in `nvllm-launch "Summarise this" <report.txt`. The prompt "-" is replaced by that
// text. say: called with a message for the user if a pipe sends nothing for long.
std::string with_standard_input(const std::string& prompt, int standard_input,
                                const std::function<void(const std::string&)>& say);

// Answers each line of standard input as a separate prompt. As many as the engine can run are in
// flight together. The answers are written in the order of the lines; the first unfinished one is
// streamed.
class LineAnswers {
 public:
  // All arguments must outlive it. The model must have a chat template.
  LineAnswers(const Options& options, const TextModel& model, EngineSession& session);

  // Runs until the input has ended and all lines are answered. check_alive is called several times
  // a second and throws if the workers have ended. A line that fails is reported on standard error,
  // and the others are still answered; in the end an Error reports how many lines failed.
  void run(const std::function<void()>& check_alive);

 private:
  // An answer that has not been written completely.
  struct Answer {
    std::uint64_t line;
    AnswerText text;
    ThinkingText shown;
    std::string pending = "";  // the part that has not been written
    std::string error = "";
    bool ended = false;
  };

  // Reads and submits lines, up to the maximum number of requests in flight.
  void read_lines(Nanoseconds limit);
  void submit(const std::string& line);
  // A piece of the answer in the form for the terminal.
  static std::string shown(Answer& answer, const std::string& piece);
  void apply_updates();
  // Writes what is due.
  void write();
  std::string totals(double seconds) const;

  const Options& options_;
  const TextModel& model_;
  EngineSession& session_;
  Conversation conversation_;
  runtime::SamplingParams sampling_;
  LineReader lines_{"-"};
  bool at_end_ = false;  // of the input

  // Request ids are 1, 2, ... in the order of the lines; answers_ starts with that of first_.
  std::deque<Answer> answers_;
  std::uint64_t first_ = 1;
  std::int64_t answered_ = 0, failed_ = 0, tokens_ = 0;
  std::string first_error_;
};

}  // namespace nvllm::launcher
