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
  // All must outlive it, and the model what `text_work` is busy with. The model must have a chat
  // template.
  ChatSession(const Options& options, const TextModel& model, EngineSession& session,
              AbandonableWork& text_work);

  Conversation& conversation() { return conversation_; }
  runtime::SamplingParams& sampling() { return sampling_; }
  std::vector<std::string>& stops() { return stops_; }  // stop strings
  std::int64_t context() const { return session_.info().max_model_len; }

  // All of them write the answer to standard output while it is generated, and the progress of a
  // long prompt to standard error, if that is a terminal. What they change of the conversation is
  // undone if an Error is thrown, or the answer is stopped before it has a text. What is stopped
  // while its text is made into tokens ends with an Error, too.
  using Stop = std::function<bool()>;  // called many times a second; true stops the answer
  StreamedAnswer ask(const std::string& question, const Stop& stop);
  // Another answer to the last question. An Error if there is none.
  StreamedAnswer ask_again(const Stop& stop);
  // Goes on with the last answer, which was cut off or stopped. An Error if it was not.
  StreamedAnswer go_on(const Stop& stop);

  // Why the last answer is not whole, in words; empty: it is.
  std::string cut_off() const { return last_ ? last_->cut_off : ""; }
  // The conversation was replaced: the last answer is not part of it any more.
  void forget_last_answer() { last_.reset(); }

 private:
  // The last answer, as long as it is the conversation's last message.
  struct LastAnswer {
    std::vector<std::int32_t> prompt;  // of its first part
    std::vector<std::int32_t> tokens;  // of all its parts
    bool thinking = false;             // it begins inside <think>
    std::string cut_off;               // why it is not whole
  };

  StreamedAnswer answer(const Stop& stop);
  StreamedAnswer answer_or(const std::function<void()>& restore, const Stop& stop);
  // Streams an answer; of `wanted` the id, the sampling and the stops are the chat's.
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

// The sampling parameters: those of the command line, else of the model, else defaults for a chat.
runtime::SamplingParams chat_sampling(const Options& options, const EngineSession& session);
// How long a prompt may be so that the context still holds an answer.
std::size_t max_prompt_tokens(const runtime::SamplingParams& sampling,
                              const EngineSession& session);
// What is told of an answer that was stopped before it had a text.
inline constexpr const char* kStopped = "(stopped before the first token; the question is dropped)";
// Whether standard output is a terminal, and NO_COLOR is not set.
bool wants_colour();

// Prints a line on standard error.
void print_line(EngineSession& session, const std::string& line);

}  // namespace nvllm::launcher
