// LineAnswers: each line of standard input is a prompt of its own. As many as the engine runs at a time are
// answered together; the answers come out in the order of the lines, the first one that has not ended as it grows.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "launcher/chat/conversation.h"
#include "launcher/chat/thinking_text.h"
#include "launcher/engine_session.h"
#include "launcher/generate/line_reader.h"
#include "launcher/options.h"
#include "tokenizer/stream.h"

namespace nvllm::launcher {

class LineAnswers {
 public:
  // All must outlive it. The model has a chat template.
  LineAnswers(const Options& options, const TextModel& model, EngineSession& session);

  // Until the input has ended and all is answered. check_alive is asked several times a second and throws if the
  // workers have ended. A line that cannot be answered is told on standard error, and the others are answered;
  // an Error at the end says how many there were.
  void run(const std::function<void()>& check_alive);

 private:
  // An answer that has not been written to its end.
  struct Answer {
    std::uint64_t line;
    tokenizer::StreamDetokenizer detokenizer;
    ThinkingText shown;
    std::string pending = "";  // what has not been written of it
    std::string error = "";
    bool ended = false;
  };

  // Takes lines as long as there are some and there is room for them.
  void take_lines(Nanoseconds limit);
  void ask(const std::string& line);
  void take_updates();
  // Whatever may be written by now.
  void write();
  std::string totals(double seconds) const;

  const Options& options_;
  const TextModel& model_;
  EngineSession& session_;
  Conversation conversation_;
  runtime::SamplingParams sampling_;
  LineReader lines_{"-"};
  bool at_end_ = false;  // of the input

  // The request numbers are 1, 2, ... in the order of the lines; answers_ begins with that of first_.
  std::deque<Answer> answers_;
  std::uint64_t first_ = 1;
  std::int64_t answered_ = 0, failed_ = 0, tokens_ = 0;
  std::string first_error_;
};

}  // namespace nvllm::launcher
