// ChatSession: asks a model questions within one conversation, and streams its answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/chat/conversation.h"
#include "launcher/cli/options.h"
#include "launcher/session/engine_session.h"
#include "runtime/engine/engine_client.h"
#include "tokenizer/tokenizer.h"

namespace nvllm::launcher {

// An answer that was shown while it was generated.
struct StreamedAnswer {
  std::string text = "";
  std::int64_t tokens = 0, prompt_tokens = 0, cached_tokens = 0;
  double first_token_s = 0;  // TTFT
  double total_s = 0;
  bool interrupted = false;

  // "52 tokens in 1.63 s, 34.1 tok/s; TTFT 210 ms; prompt 48 tokens (32 cached)"
  std::string statistics() const;
};

struct AnswerSinks {
  std::function<void(std::string_view)> text;  // called with each new piece
  std::function<bool()> stop;  // called several times a second; true stops the answer
};

// Submits a request and waits for the end of its answer. Throws an Error if the request is refused.
StreamedAnswer stream_answer(runtime::EngineClient& client, std::uint64_t id,
                             const runtime::Request& request, const std::vector<std::string>& stops,
                             const tokenizer::Tokenizer& tokenizer, const AnswerSinks& sinks);

class ChatSession {
 public:
  // All must outlive it. The model must have a chat template.
  ChatSession(const Options& options, const TextModel& model, EngineSession& session);

  Conversation& conversation() { return conversation_; }
  runtime::SamplingParams& sampling() { return sampling_; }

  // Asks a question and writes the answer to standard output while it is generated. Both become
  // part of the conversation, unless an Error is thrown.
  StreamedAnswer ask(const std::string& question, const std::function<bool()>& stop);

 private:
  const TextModel& model_;
  EngineSession& session_;
  Conversation conversation_;
  runtime::SamplingParams sampling_;
  std::uint64_t last_request_ = 0;
};

// The sampling parameters: those of the command line, else of the model, else defaults for a chat.
runtime::SamplingParams chat_sampling(const Options& options, const EngineSession& session);
// How long a prompt may be so that the context still holds an answer.
std::size_t max_prompt_tokens(const runtime::SamplingParams& sampling,
                              const EngineSession& session);
// Whether standard output is a terminal, and NO_COLOR is not set.
bool wants_colour();

// Prints a line on standard error.
void print_line(EngineSession& session, const std::string& line);

}  // namespace nvllm::launcher
