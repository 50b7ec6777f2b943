#include "launcher/chat/talk.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "launcher/chat/thinking_text.h"
#include "launcher/standard_output.h"

namespace nvllm::launcher {
namespace {

// Where neither the model nor the command line says how tokens are chosen. A small model that always
// takes what is most likely soon repeats itself for ever.
constexpr double kTemperature = 0.8;
constexpr std::int32_t kTopK = 40;
constexpr double kTopP = 0.95;
constexpr double kMinP = 0.05;

}  // namespace

runtime::SamplingParams chat_sampling(const Options& options, const EngineSession& session) {
  runtime::SamplingParams sampling = session.sampling_defaults();
  const model::GenerationConfig& wishes = session.model().generation;
  if (!wishes.temperature && !wishes.top_p && !wishes.top_k) {
    sampling.temperature = kTemperature;
    sampling.top_k = kTopK;
    sampling.top_p = kTopP;
    sampling.min_p = kMinP;
  }
  sampling.max_tokens.reset();  // an answer may be as long as there is room
  apply_sampling(options.sampling, sampling);
  sampling.n = 1;
  return sampling;
}

bool wants_colour() {
  const char* const no_colour = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0');
}

std::size_t prompt_room(const runtime::SamplingParams& sampling, const EngineSession& session) {
  const std::int64_t context = session.info().max_model_len;
  const std::int64_t answer =
      std::min<std::int64_t>(sampling.max_tokens.value_or(1024), context / 4);
  return static_cast<std::size_t>(context - answer);
}

void tell(EngineSession& session, const std::string& line) {
  session.workers().console().print(line + "\n");
  session.workers().console().flush(std::chrono::seconds(1));
}

Talk::Talk(const Options& options, const TextModel& model, EngineSession& session)
    : model_(model),
      session_(session),
      conversation_(model),
      sampling_(chat_sampling(options, session)) {
  conversation_.set_system(options.chat.system);
}

StreamedAnswer Talk::ask(const std::string& question, const std::function<bool()>& stop) {
  const std::int64_t context = session_.info().max_model_len;
  conversation_.add("user", question);
  StreamedAnswer answer;
  try {
    const auto prompt = conversation_.prompt(prompt_room(sampling_, session_));
    if (prompt.forgotten > 0) {
      tell(session_, str("(the context of ", context, " tokens is full: the oldest ",
                         prompt.forgotten, " messages are forgotten)"));
    }
    ThinkingText shown(wants_colour(), prompt.thinking);
    answer = stream_answer(
        session_.client(), ++asked_, {.prompt = prompt.ids, .sampling = sampling_}, {},
        model_.tokenizer(),
        {.text = [&](std::string_view piece) { write_results(shown.push(piece)); }, .stop = stop});
    write_results(shown.finish() + "\n");
  } catch (const Error&) {
    conversation_.drop_last();
    throw;
  }
  conversation_.add("assistant", answer.text);
  return answer;
}

}  // namespace nvllm::launcher
