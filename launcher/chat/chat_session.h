// ChatSession: asks a model questions within one conversation, and streams its answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/chat/abandonable_work.h"
#include "launcher/chat/conversation.h"
#include "launcher/chat/streamed_answer.h"
#include "launcher/cli/options.h"
#include "launcher/session/engine_session.h"

namespace nvllm::launcher {

class ChatSession {
 public:
  // All arguments must outlive it, and the model also the work of `text_work`. The model must have
  // a chat template.
  ChatSession(const Options& options, const TextModel& model, EngineSession& session,
              AbandonableWork& text_work);

  Conversation& conversation() { return conversation_; }
  runtime::SamplingParams& sampling() { return sampling_; }
  std::vector<std::string>& stops() { return stops_; }  // stop strings
  std::int64_t context() const { return session_.info().max_model_len; }

  // These write the answer to standard output while it is generated, and the progress of a long
  // prompt to standard error, if that is a terminal. Changes to the conversation are undone if an
  // Error is thrown, or the answer is stopped before it has a text. A stop during tokenization ends
  // with an Error, too.
  using Stop = std::function<bool()>;  // called many times a second; true stops the answer
  StreamedAnswer ask(const std::string& question, const Stop& stop);
  // Answers the last question again. An Error if there is none.
  StreamedAnswer ask_again(const Stop& stop);
  // Continues the last answer, which was cut off or stopped. An Error if it was not.
  StreamedAnswer go_on(const Stop& stop);

  // Why the last answer is incomplete, as text; empty: it is complete.
  std::string cut_off() const { return last_ ? last_->cut_off : ""; }
  // The conversation was replaced: the last answer is no longer part of it.
  void forget_last_answer() { last_.reset(); }

 private:
  // The last answer, while it is the conversation's last message.
  struct LastAnswer {
    std::vector<std::int32_t> prompt;  // of its first part
    std::vector<std::int32_t> tokens;  // of all of its parts
    bool thinking = false;             // whether it starts inside <think>
    std::string cut_off;               // why it is incomplete
  };

  StreamedAnswer answer(const Stop& stop);
  StreamedAnswer answer_or(const std::function<void()>& restore, const Stop& stop);
  // Streams an answer; the id, sampling and stops of `wanted` are set from the chat's.
  StreamedAnswer stream(AnswerRequest wanted, bool thinking, const Stop& stop);
  Conversation::Prompt next_prompt(std::size_t limit, const Stop& stop);
  std::vector<std::int32_t> first_tokens(std::vector<std::int32_t>& prompt, const Stop& stop);
  std::string why_cut_off(const StreamedAnswer& part) const;

  const TextModel& model_;
  EngineSession& session_;
  AbandonableWork& text_work_;
  Conversation conversation_;
  runtime::SamplingParams sampling_;
  std::vector<std::string> stops_;
  std::uint64_t last_request_ = 0;
  std::optional<LastAnswer> last_;
};

// The sampling parameters: those of the command line, otherwise those of the model, otherwise
// defaults for a chat.
runtime::SamplingParams chat_sampling(const Options& options, const EngineSession& session);
// Maximum length of a prompt such that the context can still hold an answer.
std::size_t max_prompt_tokens(const runtime::SamplingParams& sampling,
                              const EngineSession& session);
// Printed for an answer that was stopped before it had a text.
inline constexpr const char* kStopped = "(stopped before the first token; the question is dropped)";
// Whether standard output is a terminal, and NO_COLOR is not set.
bool wants_colour();

// Prints a line on standard error.
void print_line(EngineSession& session, const std::string& line);

}  // namespace nvllm::launcher
