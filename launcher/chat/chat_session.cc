#include "launcher/chat/chat_session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "launcher/chat/terminal.h"
#include "launcher/session/text_io.h"
#include "launcher/session/text_table.h"
#include "tokenizer/stream.h"

namespace nvllm::launcher {

namespace {

// Sampling defaults where neither the model nor the command line has any. A small model with greedy
// sampling soon repeats itself for ever.
constexpr double kTemperature = 0.8;
constexpr std::int32_t kTopK = 40;
constexpr double kTopP = 0.95;
constexpr double kMinP = 0.05;

}  // namespace

runtime::SamplingParams chat_sampling(const Options& options, const EngineSession& session) {
  runtime::SamplingParams sampling = session.sampling_defaults();
  const model::GenerationConfig& config = session.model().generation;
  if (!config.temperature && !config.top_p && !config.top_k) {
    sampling.temperature = kTemperature;
    sampling.top_k = kTopK;
    sampling.top_p = kTopP;
    sampling.min_p = kMinP;
  }
  sampling.max_tokens.reset();  // an answer may fill the context
  apply_sampling(options.sampling, sampling);
  sampling.n = 1;
  return sampling;
}

bool wants_colour() {
  const char* const no_colour = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0');
}

std::size_t max_prompt_tokens(const runtime::SamplingParams& sampling,
                              const EngineSession& session) {
  const std::int64_t context = session.info().max_model_len;
  const std::int64_t answer =
      std::min<std::int64_t>(sampling.max_tokens.value_or(1024), context / 4);
  return static_cast<std::size_t>(context - answer);
}

void print_line(EngineSession& session, const std::string& line) {
  session.workers().console().print(line + "\n");
  session.workers().console().flush(std::chrono::seconds(1));
}

ChatSession::ChatSession(const Options& options, const TextModel& model, EngineSession& session)
    : model_(model),
      session_(session),
      conversation_(model),
      sampling_(chat_sampling(options, session)) {
  conversation_.set_system(options.chat.system);
}

StreamedAnswer ChatSession::ask(const std::string& question, const std::function<bool()>& stop) {
  const std::int64_t context = session_.info().max_model_len;
  conversation_.add("user", question);
  StreamedAnswer answer;
  try {
    const auto prompt = conversation_.prompt(max_prompt_tokens(sampling_, session_));
    if (prompt.forgotten > 0) {
      print_line(session_, str("(the context of ", context, " tokens is full: the oldest ",
                               prompt.forgotten, " messages are forgotten)"));
    }
    ThinkingText shown(wants_colour(), prompt.thinking);
    answer = stream_answer(
        session_.client(), ++last_request_, {.prompt = prompt.ids, .sampling = sampling_}, {},
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

namespace {

constexpr Nanoseconds kPollInterval = std::chrono::milliseconds(50);

}  // namespace

std::string StreamedAnswer::statistics() const {
  std::string text = "no token";
  if (tokens > 0) {
    // The decode speed leaves out the first token, whose time includes the prefill.
    const double decode_s = total_s - first_token_s;
    text = str(tokens, tokens == 1 ? " token in " : " tokens in ", format_duration(total_s));
    if (tokens > 1 && decode_s > 0) {
      text += str(", ", fixed(static_cast<double>(tokens - 1) / decode_s, 1), " tok/s");
    }
    text += str("; TTFT ", format_duration(first_token_s));
  }
  text += str("; prompt ", prompt_tokens, prompt_tokens == 1 ? " token" : " tokens");
  if (cached_tokens > 0) text += str(" (", cached_tokens, " cached)");
  return text;
}

StreamedAnswer stream_answer(runtime::EngineClient& client, std::uint64_t id,
                             const runtime::Request& request, const std::vector<std::string>& stops,
                             const tokenizer::Tokenizer& tokenizer, const AnswerSinks& sinks) {
  StreamedAnswer answer{.prompt_tokens = static_cast<std::int64_t>(request.prompt.size())};
  tokenizer::StreamDetokenizer stream(tokenizer, {.stop_strings = stops});
  const std::int64_t submitted_ns = now_ns();
  const auto show = [&](const std::string& piece) {
    if (piece.empty()) return;
    answer.text += piece;
    sinks.text(piece);
  };
  bool ended = false;
  client.submit(id, request);
  const auto end = [&] {
    if (!std::exchange(ended, true)) client.abort(id);
  };
  while (client.unfinished() > 0) {
    for (const runtime::Update& update : client.poll(kPollInterval)) {
      if (!update.error.empty()) fail(update.error);
      for (const std::int32_t token : update.tokens) {
        if (ended) break;
        if (answer.tokens++ == 0) answer.first_token_s = seconds_since(submitted_ns);
        answer.total_s = seconds_since(submitted_ns);
        show(stream.push(static_cast<tokenizer::TokenId>(token)));
        if (stream.stopped()) end();
      }
      if (update.finish != runtime::FinishReason::none) {
        answer.cached_tokens = update.cached_tokens;
        if (!ended) show(stream.finish());
      }
    }
    if (!ended && sinks.stop && sinks.stop()) {
      answer.interrupted = true;
      end();
    }
  }
  return answer;
}

}  // namespace nvllm::launcher
