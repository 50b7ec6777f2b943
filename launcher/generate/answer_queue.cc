#include "launcher/generate/answer_queue.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/text.h"
#include "launcher/generate/batch.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {
namespace {

template <typename Value>
void append(std::vector<Value>& to, const std::vector<Value>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::uint64_t bytes_of(const std::vector<runtime::TokenLogprobs>& logprobs) {
  std::uint64_t bytes = 0;
  for (const runtime::TokenLogprobs& each : logprobs) {
    bytes += sizeof(each) + each.top.size() * sizeof(runtime::TokenLogprob);
  }
  return bytes;
}

constexpr Nanoseconds kBarEvery = std::chrono::milliseconds(200);

std::string rate(std::uint64_t tokens, std::int64_t from_ns, std::int64_t to_ns) {
  const double seconds = static_cast<double>(to_ns - from_ns) * 1e-9;
  return fixed(seconds > 0 ? static_cast<double>(tokens) / seconds : 0, 1) + " tok/s";
}

}  // namespace

void AnswerQueue::use_text(const tokenizer::Tokenizer& tokenizer, bool pieces) {
  tokenizer_ = &tokenizer;
  wants_pieces_ = pieces;
}

void AnswerQueue::add_request(RequestInfo request, std::uint64_t read_bytes) {
  const auto n = static_cast<std::size_t>(request.n);
  Entry entry{
      .request = std::move(request), .answers = std::vector<Answer>(n), .read_bytes = read_bytes};
  entry.open = entry.request.n;
  if (tokenizer_ != nullptr) {
    for (Answer& answer : entry.answers) {
      answer.text = "";
      entry.texts.push_back(std::make_unique<tokenizer::StreamDetokenizer>(
          *tokenizer_,
          tokenizer::StreamOptions{.skip_special_tokens = entry.request.text.skip_special_tokens,
                                   .stop_strings = entry.request.text.stop}));
    }
  }
  const std::size_t prompt_bytes = entry.request.prompt.size() * sizeof(std::int32_t);
  add_entry(std::move(entry), prompt_bytes + n * sizeof(Answer));
}

AnswerQueue::Entry& AnswerQueue::add_entry(Entry entry, std::uint64_t bytes) {
  const std::uint64_t line = entry.request.line;
  NVLLM_CHECK(entries_.empty() || entries_.back().request.line < line, "line ", line);
  entry.bytes = bytes;
  held_bytes_ += bytes;
  entries_.push_back(std::move(entry));
  return entries_.back();
}

void AnswerQueue::add_finished(std::uint64_t line, std::string text, std::uint64_t read_bytes) {
  const std::size_t bytes = text.size();
  add_entry({.request = {.line = line}, .text = std::move(text), .read_bytes = read_bytes}, bytes);
}

void AnswerQueue::add_call(RequestInfo request, BatchCall call, std::uint64_t read_bytes) {
  const std::uint64_t bytes =
      call.prompt_tokens() * sizeof(std::int32_t) + call.answers() * sizeof(Answer);
  Entry& entry = add_entry(
      {.request = std::move(request), .call = std::move(call), .read_bytes = read_bytes}, bytes);
  entry.open = 1;
}

void AnswerQueue::add_batch_error(RequestInfo request, const ApiError& error,
                                  std::uint64_t read_bytes) {
  Entry& entry = add_entry({.request = std::move(request), .read_bytes = read_bytes}, 0);
  append_batch_answer(entry, error.status(),
                      error_body(error.status(), error.what(), error.param()));
  count_failure(entry, error.what());
}

void AnswerQueue::add_error(RequestInfo request, const std::string& error,
                            std::uint64_t read_bytes) {
  fail(add_entry({.request = std::move(request), .read_bytes = read_bytes}, 0), error);
}

AnswerQueue::Entry& AnswerQueue::find(std::uint64_t line) {
  const auto found = std::lower_bound(
      entries_.begin(), entries_.end(), line,
      [](const Entry& entry, std::uint64_t wanted) { return entry.request.line < wanted; });
  NVLLM_CHECK(found != entries_.end() && found->request.line == line, "no request of line ", line);
  return *found;
}

void AnswerQueue::apply(const runtime::Update& update) {
  constexpr std::uint64_t kLineMask = engine_request(0, 1) - 1;
  Entry& entry = find(update.request & kLineMask);
  if (entry.call) return apply_to_call(entry, update.request >> kLineBits, update);
  if (!update.error.empty()) return fail(entry, update.error);
  Answer& answer = entry.answers.at(static_cast<std::size_t>(update.index));
  if (answer.stop_string.empty() && entry.broken.empty()) {
    try {
      append_tokens(entry, update.index, update);
    } catch (const std::exception& error) {
      entry.broken = str("the answer cannot be written: ", error.what());
    }
  }
  if (update.index == 0) append(entry.prompt_logprobs, update.prompt_logprobs);
  if (update.finish != runtime::FinishReason::none) {
    entry.stopped -= answer.stop_string.empty() ? 0 : 1;
    finish(entry, answer, update);
  }
  // A failed entry is complete when the engine has sent the last update of each part.
  if (entry.open == 0 && !entry.broken.empty()) return fail(entry, entry.broken);
  const bool useless = entry.stopped == entry.open || !entry.broken.empty();
  if (entry.open > 0 && useless && !std::exchange(entry.reported, true)) {
    stopped_.push_back(entry.request.line);
  }
}

void AnswerQueue::apply_to_call(Entry& entry, std::size_t index, const runtime::Update& update) {
  const std::uint64_t line = entry.request.line;
  totals_.generated_tokens += update.tokens.size();
  if (update.finish != runtime::FinishReason::none) {
    totals_.cached_tokens += static_cast<std::uint64_t>(update.cached_tokens);
  }
  for (const std::size_t i : entry.call->apply(index, update)) {
    stopped_.push_back(engine_request(line, i));
  }
  if (!entry.call->done()) return;
  entry.open = 0;
  const std::string body = entry.call->body();
  if (entry.call->error().empty()) {
    append_batch_answer(entry, 200, body);
    ++totals_.requests;
    totals_.answers += entry.call->answers();
    totals_.prompt_tokens += entry.call->prompt_tokens();
  } else {
    constexpr int kBadRequest = 400;
    append_batch_answer(entry, kBadRequest, error_body(kBadRequest, entry.call->error()));
    count_failure(entry, entry.call->error());
  }
  entry.call.reset();
  entry.bytes += entry.text.size();
  held_bytes_ += entry.text.size();
}

void AnswerQueue::append_batch_answer(Entry& entry, int status, std::string_view body) {
  const RequestInfo& request = entry.request;
  append_batch_line(entry.text, request.line, request.id, request.hash, status, body);
}

void AnswerQueue::append_tokens(Entry& entry, std::int32_t index, const runtime::Update& update) {
  const auto at = static_cast<std::size_t>(index);
  Answer& answer = entry.answers[at];
  std::size_t count = update.tokens.size();
  std::string piece;
  if (!entry.texts.empty()) {
    tokenizer::StreamDetokenizer& text = *entry.texts[at];
    for (std::size_t i = 0; i < count; ++i) {
      piece += text.push(static_cast<tokenizer::TokenId>(update.tokens[i]));
      if (text.stopped()) count = i + 1;
    }
    if (update.finish != runtime::FinishReason::none) piece += text.finish();
    if (text.stopped()) {
      answer.stop_string = text.stop_string();
      ++entry.stopped;
    }
    answer.text->append(piece);
  }
  const auto end = static_cast<std::ptrdiff_t>(count);
  const std::vector<std::int32_t> tokens(update.tokens.begin(), update.tokens.begin() + end);
  append(answer.tokens, tokens);
  const auto logprobs = std::min(count, update.logprobs.size());
  answer.logprobs.insert(answer.logprobs.end(), update.logprobs.begin(),
                         update.logprobs.begin() + static_cast<std::ptrdiff_t>(logprobs));
  totals_.generated_tokens += count;
  if (wants_pieces_ && !(piece.empty() && tokens.empty())) {
    append_piece_line(pieces_, entry.request, index, piece, tokens);
  }
}

void AnswerQueue::finish(Entry& entry, Answer& answer, const runtime::Update& update) {
  answer.finish = answer.stop_string.empty() ? update.finish : runtime::FinishReason::stop;
  answer.cached_tokens = update.cached_tokens;
  answer.preemptions = update.preemptions;
  answer.kv_mode = update.kv_mode;
  answer.times = update.times;
  ++totals_.answers;
  totals_.cached_tokens += static_cast<std::uint64_t>(update.cached_tokens);
  const std::uint64_t bytes = answer.tokens.size() * sizeof(std::int32_t) +
                              bytes_of(answer.logprobs) + (answer.text ? answer.text->size() : 0);
  entry.bytes += bytes;
  held_bytes_ += bytes;
  if (--entry.open > 0) return;
  ++totals_.requests;
  totals_.prompt_tokens += entry.request.prompt.size();
}

void AnswerQueue::fail(Entry& entry, const std::string& error) {
  entry.answers.clear();
  entry.open = 0;
  append_error_line(entry.text, entry.request, error);
  count_failure(entry, error);
}

void AnswerQueue::count_failure(const Entry& entry, std::string_view error) {
  ++totals_.failed;
  if (totals_.first_failure.empty()) {
    totals_.first_failure = str("line ", entry.request.line, ": ", error);
  }
}

void AnswerQueue::append_lines(std::string& out, const Entry& entry) {
  out += entry.text;
  for (std::size_t i = 0; i < entry.answers.size(); ++i) {
    if (entry.answers[i].finish == runtime::FinishReason::none) continue;
    append_answer_line(out, entry.request, static_cast<std::int32_t>(i), entry.answers[i],
                       entry.prompt_logprobs);
  }
}

std::string AnswerQueue::take_ready() {
  std::string out;
  while (!entries_.empty() && entries_.front().open == 0) {
    const Entry& entry = entries_.front();
    append_lines(out, entry);
    totals_.written_bytes = entry.read_bytes;
    held_bytes_ -= entry.bytes;
    entries_.pop_front();
  }
  return out;
}

std::string AnswerQueue::take_all_done() {
  std::string out;
  for (const Entry& entry : entries_) append_lines(out, entry);
  entries_.clear();
  held_bytes_ = 0;
  return out;
}

std::string GenerateProgress::bar(const AnswerQueue::Totals& totals, std::uint64_t total_bytes,
                                  std::int64_t now_ns) {
  if (now_ns - shown_ns_ < kBarEvery.count()) return "";
  shown_ns_ = now_ns;
  shown_ = true;
  std::string text = str(kClearLine, "generating ");
  if (total_bytes > 0) {
    const double done =
        std::min(1.0, static_cast<double>(totals.written_bytes) / static_cast<double>(total_bytes));
    text += progress_bar(done);
  }
  return text + str(counted(totals.requests + totals.failed, "request"), " done, ",
                    rate(totals.generated_tokens, started_ns_, now_ns));
}

std::string GenerateProgress::clear() {
  if (!shown_) return "";
  shown_ = false;
  return kClearLine;
}

std::string GenerateProgress::summary(const AnswerQueue::Totals& totals, std::uint64_t kept_lines,
                                      std::int64_t now_ns) const {
  std::string text;
  if (kept_lines > 0) {
    text =
        str(counted(kept_lines, "line"), kept_lines == 1 ? " was" : " were", " answered already; ");
  }
  text += str(counted(totals.requests, "request"), ", ", counted(totals.answers, "answer"), " in ",
              fixed(static_cast<double>(now_ns - started_ns_) * 1e-9, 2),
              " s: ", counted(totals.prompt_tokens, "prompt token"), " (", totals.cached_tokens,
              " cached), ", totals.generated_tokens, " generated, ",
              rate(totals.generated_tokens, started_ns_, now_ns));
  if (totals.failed > 0) text += str("; ", counted(totals.failed, "line"), " failed");
  return text;
}

}  // namespace nvllm::launcher
