#include "launcher/chat/piped_input.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/logging.h"
#include "base/text.h"
#include "base/visible_text.h"
#include "launcher/chat/chat_session.h"
#include "launcher/session/text_io.h"

namespace nvllm::launcher {
namespace {

// No context holds more text.
constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
constexpr int kPatienceMs = 1000;

// Whether standard input was redirected for this program: not a terminal or /dev/null.
bool holds_text(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 &&
         (S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
}

std::string read_all(int fd, const std::function<void(const std::string&)>& say) {
  std::string text;
  std::array<char, 65536> buffer;
  pollfd polled{fd, POLLIN, 0};
  if (::poll(&polled, 1, kPatienceMs) == 0) {
    say("reading the rest of the prompt from standard input; pass </dev/null if there is none");
  }
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("reading standard input");
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kMaxBytes) {
      fail("standard input has more than ", format_bytes(kMaxBytes), ", which no prompt may have");
    }
  }
}

constexpr Nanoseconds kPollInterval = std::chrono::milliseconds(50);

}  // namespace

std::string with_standard_input(const std::string& prompt, int standard_input,
                                const std::function<void(const std::string&)>& say) {
  const bool alone = prompt == "-";
  if (!alone && !holds_text(standard_input)) return prompt;
  std::string text = read_all(standard_input, say);
  text.erase(text.find_last_not_of("\r\n") + 1);
  if (alone && text.empty()) fail("the prompt '-': standard input is empty");
  if (alone) return text;
  return text.empty() ? prompt : str(prompt, "\n\n", text);
}

LineAnswers::LineAnswers(const Options& options, const TextModel& model, EngineSession& session)
    : options_(options),
      model_(model),
      session_(session),
      conversation_(model),
      sampling_(chat_sampling(options, session)) {
  conversation_.set_system(options.chat.system);
}

void LineAnswers::run(const std::function<void()>& check_alive) {
  const std::int64_t started_ns = now_ns();
  while (!at_end_ || !answers_.empty()) {
    check_alive();
    const bool busy = session_.client().unfinished() > 0;
    read_lines(busy ? Nanoseconds(0) : kPollInterval);
    if (session_.client().unfinished() > 0) apply_updates();
    write();
  }
  if (answered_ > 0 && log_enabled(LogLevel::info)) {
    print_line(session_, totals(seconds_since(started_ns)));
  }
  if (failed_ > 0) {
    fail(failed_, failed_ == 1 ? " line failed: " : " lines failed; the first, ", first_error_);
  }
}

void LineAnswers::read_lines(Nanoseconds limit) {
  // Twice as many as can run, so that a long answer does not leave the engine idle.
  const auto max = 2 * static_cast<std::size_t>(options_.engine.max_num_seqs);
  while (!at_end_ && answers_.size() < max) {
    const LineReader::Found found = lines_.next(limit);
    if (found == LineReader::Found::nothing_yet) return;
    if (found == LineReader::Found::end) {
      at_end_ = true;
      return;
    }
    limit = Nanoseconds(0);
    const std::string line(lines_.line());
    if (lines_.too_long() || line.find_first_not_of(" \t\r") != std::string::npos) submit(line);
  }
}

void LineAnswers::submit(const std::string& line) {
  const std::uint64_t id = first_ + answers_.size();
  answers_.push_back({.line = lines_.number(),
                      .text = AnswerText(model_.tokenizer(), options_.chat.stop),
                      .shown = ThinkingText(false, false)});
  Answer& answer = answers_.back();
  try {
    if (lines_.too_long()) {
      fail("is longer than ", format_bytes(LineReader::kMaxLine), "; pass shorter ones");
    }
    conversation_.reset();
    conversation_.add("user", line);
    const auto prompt = conversation_.prompt(max_prompt_tokens(sampling_, session_));
    answer.shown = ThinkingText(wants_colour(), prompt.thinking);
    session_.client().submit(id, {.prompt = prompt.ids, .sampling = sampling_});
  } catch (const std::exception& error) {
    if (session_.workers().member().group().aborted()) throw;
    answer.error = error.what();
    answer.ended = true;
  }
}

std::string LineAnswers::shown(Answer& answer, const std::string& piece) {
  return answer.shown.push(visible_on(STDOUT_FILENO, piece));
}

void LineAnswers::apply_updates() {
  for (const runtime::Update& update : session_.client().poll(kPollInterval)) {
    Answer& answer = answers_.at(update.request - first_);
    for (const std::int32_t token : update.tokens) {
      if (answer.text.stopped()) break;
      answer.pending += shown(answer, answer.text.push(static_cast<tokenizer::TokenId>(token)));
      if (answer.text.stopped()) session_.client().abort(update.request);
    }
    tokens_ += static_cast<std::int64_t>(update.tokens.size());
    answer.error = update.error;
    if (!update.error.empty() || update.finish != runtime::FinishReason::none) {
      answer.pending += shown(answer, answer.text.finish()) + answer.shown.finish();
      answer.ended = true;
    }
  }
}

void LineAnswers::write() {
  while (!answers_.empty()) {
    Answer& first = answers_.front();
    const bool ended = first.ended;
    if (!first.error.empty()) {
      const std::string error = str("line ", first.line, ": ", first.error);
      if (failed_++ == 0) first_error_ = error;
      if (!first.pending.empty()) write_as_is(first.pending + "\n");
      print_line(session_, error);
    } else {
      answered_ += ended ? 1 : 0;
      write_as_is(std::exchange(first.pending, "") + (ended ? "\n" : ""));
    }
    if (!ended) return;
    answers_.pop_front();
    ++first_;
  }
}

std::string LineAnswers::totals(double seconds) const {
  const auto rate = static_cast<std::int64_t>(static_cast<double>(tokens_) / seconds);
  return str(answered_, answered_ == 1 ? " answer, " : " answers, ", tokens_, " tokens in ",
             format_duration(seconds), ", ", rate, " tok/s");
}

}  // namespace nvllm::launcher
