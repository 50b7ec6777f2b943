#include "launcher/chat/chat_session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/visible_text.h"
#include "launcher/chat/streamed_answer.h"
#include "launcher/chat/terminal/terminal_text.h"
#include "launcher/session/text_io.h"
#include "launcher/session/text_table.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {
namespace {

// Sampling defaults if neither the model nor the command line specifies any. A small model with
// greedy sampling soon repeats itself forever.
constexpr double kTemperature = 0.8;
constexpr std::int32_t kTopK = 40;
constexpr double kTopP = 0.95;
constexpr double kMinP = 0.05;

}  // namespace

runtime::SamplingParams chat_sampling(const Options& options, const EngineSession& session) {
  runtime::SamplingParams sampling = session.sampling_defaults();
  const model::GenerationConfig& config = session.model().generation;
  if (!config.temperature && !config.top_p && !config.top_k && !config.min_p) {
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

namespace {

// Prints progress, which moves the cursor.
void draw(EngineSession& session, const std::string& text) {
  if (text.empty()) return;
  session.workers().console().draw(text);
  session.workers().console().flush(std::chrono::seconds(1));
}

// The start of a text, limited in length, as one line.
std::string beginning_of(const std::string& text) {
  constexpr std::size_t kLongest = 40;
  std::string line;
  std::size_t count = 0;
  tokenizer::for_each_char(text, [&](char32_t c, std::string_view bytes) {
    if (++count <= kLongest) line += c < 0x20 || c == 0x7F ? " " : bytes;
  });
  return count > kLongest ? line + "..." : line;
}

// Whether a text ends inside <think>.
bool ends_thinking(const std::string& text) {
  const std::size_t open = text.rfind("<think>"), closed = text.rfind("</think>");
  return open != std::string::npos && (closed == std::string::npos || closed < open);
}

}  // namespace

void print_line(EngineSession& session, const std::string& line) {
  session.workers().console().print(line + "\n");
  session.workers().console().flush(std::chrono::seconds(1));
}

ChatSession::ChatSession(const Options& options, const TextModel& model, EngineSession& session,
                         AbandonableWork& text_work)
    : model_(model),
      session_(session),
      text_work_(text_work),
      conversation_(model),
      sampling_(chat_sampling(options, session)),
      stops_(options.chat.stop) {
  conversation_.set_system(options.chat.system);
}

// Answers the last question. If there is no answer, calls `restore`, and restores messages that
// were dropped for it.
StreamedAnswer ChatSession::answer_or(const std::function<void()>& restore, const Stop& stop) {
  const std::size_t forgotten = conversation_.forgotten();
  const auto undo = [&] {
    restore();
    conversation_.restore_forgotten(forgotten);
  };
  try {
    StreamedAnswer given = answer(stop);
    if (given.stopped_before_text()) undo();
    return given;
  } catch (const Error&) {
    undo();
    throw;
  }
}

StreamedAnswer ChatSession::ask(const std::string& question, const Stop& stop) {
  conversation_.add("user", question);
  return answer_or([&] { conversation_.take_last(); }, stop);
}

StreamedAnswer ChatSession::ask_again(const Stop& stop) {
  if (!conversation_.ends_with("assistant")) fail("there is no answer yet");
  const Message before = conversation_.take_last();
  const auto restore = [&] { conversation_.add(before.role, before.content); };
  if (!conversation_.ends_with("user")) {
    restore();
    fail("the last answer has no question");
  }
  return answer_or(restore, stop);
}

// Answers the last question; the answer becomes part of the conversation if it has a text.
StreamedAnswer ChatSession::answer(const Stop& stop) {
  Conversation::Prompt prompt = next_prompt(max_prompt_tokens(sampling_, session_), stop);
  StreamedAnswer given = stream({.request = {.prompt = prompt.ids}}, prompt.thinking, stop);
  if (given.stopped_before_text()) return given;
  conversation_.add("assistant", given.text);
  last_ = LastAnswer{.prompt = std::move(prompt.ids),
                     .tokens = given.token_ids,
                     .thinking = prompt.thinking,
                     .cut_off = why_cut_off(given)};
  return given;
}

// The conversation's prompt; reports messages that are dropped from now on.
Conversation::Prompt ChatSession::next_prompt(std::size_t limit, const Stop& stop) {
  Conversation::Prompt prompt;
  if (stop) {
    // The work gets a copy, which it keeps if it is abandoned.
    auto made = text_work_.run(
        [copy = conversation_, limit]() mutable {
          Conversation::Prompt made = copy.prompt(limit);
          return std::pair(std::move(made), copy.forgotten());
        },
        stop);
    if (!made) fail(kStopped);
    prompt = std::move(made->first);
    conversation_.restore_forgotten(made->second);
  } else {
    prompt = conversation_.prompt(limit);
  }
  if (prompt.forgotten > 0) {
    print_line(session_, str("(the context of ", context(), " tokens is full: the oldest ",
                             prompt.forgotten, " messages are forgotten, from \"",
                             beginning_of(prompt.first_forgotten), "\" on; /save still has them)"));
  }
  return prompt;
}

StreamedAnswer ChatSession::go_on(const Stop& stop) {
  if (!last_) fail("no answer to continue; ask a question");
  if (cut_off().empty() || !conversation_.ends_with("assistant")) {
    fail("the last answer ended by itself; ask another question");
  }
  LastAnswer& last = *last_;
  std::vector<std::int32_t> prompt;
  const std::vector<std::int32_t> first_part = first_tokens(prompt, stop);
  prompt.insert(prompt.end(), first_part.begin(), first_part.end());
  const Message before = conversation_.take_last();
  std::string text = before.content;
  StreamedAnswer more;
  try {
    more =
        stream({.request = {.prompt = std::move(prompt)}, .first_part = last.tokens, .shown = text},
               ends_thinking((last.thinking ? "<think>" : "") + text), stop);
  } catch (const Error&) {
    conversation_.add(before.role, before.content);
    throw;
  }
  text.resize(text.size() - more.replaced);
  conversation_.add(before.role, text + more.text);
  last.tokens.insert(last.tokens.end(), more.token_ids.begin(), more.token_ids.end());
  last.cut_off = why_cut_off(more);
  return more;
}

// The tokens of the last answer that the model needs to continue, and the prompt before them. If
// the context does not hold both, older messages are dropped, and the start of a long answer.
std::vector<std::int32_t> ChatSession::first_tokens(std::vector<std::int32_t>& prompt,
                                                    const Stop& stop) {
  const std::size_t limit = max_prompt_tokens(sampling_, session_);
  prompt = last_->prompt;
  std::vector<std::int32_t> first_part = last_->tokens;
  if (prompt.size() + first_part.size() <= limit) return first_part;
  if (first_part.size() > limit / 2) {
    first_part.erase(first_part.begin(), first_part.end() - static_cast<std::ptrdiff_t>(limit / 2));
    print_line(session_, str("(the model goes on from the last ", first_part.size(),
                             " tokens of the answer: the context of ", context(), " is full)"));
  }
  const Message answer = conversation_.take_last();
  try {
    prompt = next_prompt(limit - first_part.size(), stop).ids;
  } catch (const Error&) {
    conversation_.add(answer.role, answer.content);
    throw;
  }
  conversation_.add(answer.role, answer.content);
  return first_part;
}

std::string ChatSession::why_cut_off(const StreamedAnswer& part) const {
  if (part.interrupted()) return "the answer was stopped";
  if (part.finish != runtime::FinishReason::length) return "";
  if (sampling_.max_tokens && part.tokens() >= *sampling_.max_tokens) {
    return str("the answer was cut off at --max-tokens ", *sampling_.max_tokens);
  }
  return str("the answer was cut off: the context of ", context(), " tokens is full");
}

StreamedAnswer ChatSession::stream(AnswerRequest wanted, bool thinking, const Stop& stop) {
  wanted.id = ++last_request_;
  wanted.request.sampling = sampling_;
  wanted.stops = stops_;
  const bool on_terminal = ::isatty(STDOUT_FILENO) == 1;
  const bool shows_progress = ::isatty(STDERR_FILENO) == 1;
  ThinkingText coloured(wants_colour(), thinking);
  WrappedText wrapped([&] { return on_terminal ? window_size(STDOUT_FILENO).columns : 0; });
  PromptProgress progress(static_cast<std::int64_t>(wanted.request.prompt.size()), now_ns());
  bool any = false;
  const auto write = [&](const std::string& text) {
    draw(session_, progress.finish());
    any |= !text.empty();
    write_as_is(wrapped.push(text));
  };
  StreamedAnswer given;
  try {
    given = stream_answer(session_.client(), wanted, model_.tokenizer(),
                          {.text =
                               [&](std::string_view piece) {
                                 write(coloured.push(visible_on(STDOUT_FILENO, piece)));
                               },
                           .stop = stop,
                           .reading =
                               [&](std::int64_t read) {
                                 if (shows_progress)
                                   draw(session_, progress.update(read, now_ns()));
                               }});
  } catch (const Error&) {
    draw(session_, progress.finish());
    throw;
  }
  write(coloured.finish());
  if (any || !given.interrupted()) write_results("\n");
  return given;
}

}  // namespace nvllm::launcher
