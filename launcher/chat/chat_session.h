// Talk: a model that answers, and what was said to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "launcher/chat/answer_stream.h"
#include "launcher/chat/conversation.h"
#include "launcher/engine_session.h"
#include "launcher/options.h"

namespace nvllm::launcher {

class Talk {
 public:
  // All must outlive it. The model has a chat template.
  Talk(const Options& options, const TextModel& model, EngineSession& session);

  Conversation& conversation() { return conversation_; }
  runtime::SamplingParams& sampling() { return sampling_; }
  // Forgets everything but the system's message.
  void reset() { conversation_.reset(); }

  // Asks; the question and its answer become part of the conversation. Writes the answer to standard output
  // as it comes. An Error if it cannot be asked; it is no part of the conversation then.
  StreamedAnswer ask(const std::string& question, const std::function<bool()>& stop);

 private:
  const TextModel& model_;
  EngineSession& session_;
  Conversation conversation_;
  runtime::SamplingParams sampling_;
  std::uint64_t asked_ = 0;
};

// How tokens are chosen: as the command line says, else the model, else what suits a talk.
runtime::SamplingParams chat_sampling(const Options& options, const EngineSession& session);
// How long a prompt may be so that there is room for an answer.
std::size_t prompt_room(const runtime::SamplingParams& sampling, const EngineSession& session);
// Whether standard output is a terminal whose user has nothing against colours.
bool wants_colour();

// Lines on standard error for people.
void tell(EngineSession& session, const std::string& line);

}  // namespace nvllm::launcher
