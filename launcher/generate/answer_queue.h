// The answers of `generate`: AnswerQueue, their output lines, and the progress made with them.
//
// The queue holds the requests whose answers have not been written yet, in input order. Answers may
// finish in any order; their lines leave the queue in input order.
//
//   queue.add_request({.line = 1, .prompt = {1, 2}});          // the engine works on it
//   queue.add_error({.line = 2}, "no prompt_token_ids");       // a line that is no request
//   queue.apply(update);
//   writer.write(queue.take_ready());
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/generate/batch.h"
#include "launcher/generate/request_line.h"
#include "runtime/request.h"
#include "tokenizer/stream.h"

namespace nvllm::launcher {

// The information about a request that answer lines contain.
struct RequestInfo {
  std::uint64_t line = 0;  // in the input, from 1; on the command line, the prompt's number
  std::string id = "";     // as JSON; empty: none. In a batch: its custom_id
  std::string hash = "";   // as in RequestLine
  std::vector<std::int32_t> prompt = {};
  std::int32_t n = 1;
  std::vector<std::int32_t> stop_token_ids = {};
  bool logprobs = false, prompt_logprobs = false;
  TextRules text = {};
};

// One answer to a request; a request has n of them.
struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<runtime::TokenLogprobs> logprobs;
  std::optional<std::string> text = std::nullopt;  // nullopt: there is no tokenizer
  std::string stop_string = "";                    // the one that ended it
  runtime::FinishReason finish = runtime::FinishReason::none;
  std::int32_t cached_tokens = 0;
  std::int32_t preemptions = 0;
  std::string kv_mode;
  runtime::RequestTimes times;
};

// Output lines (answer_line.cc): JSON objects, each with its newline.

// {"id": ..., "line": ..., "index": ..., "prompt_token_ids": [...], "token_ids": [...], ...,
//  "request_hash": ...}
void append_answer_line(std::string& out, const RequestInfo& request, std::int32_t index,
                        const Answer& answer,
                        const std::vector<runtime::TokenLogprobs>& prompt_logprobs);

// A piece of an answer, for --stream: {"id": ..., "line": ..., "index": ..., "delta": "...",
// "token_ids": [...]}
void append_piece_line(std::string& out, const RequestInfo& request, std::int32_t index,
                       std::string_view text, const std::vector<std::int32_t>& tokens);

// {"id": ..., "line": ..., "error": "...", "request_hash": ...}
void append_error_line(std::string& out, const RequestInfo& request, std::string_view error);

// The id of a request in the engine: its line, and the prompt's index if it is a batch line with
// several prompts.
constexpr int kLineBits = 44;
constexpr std::uint64_t engine_request(std::uint64_t line, std::size_t index = 0) {
  return std::uint64_t{index} << kLineBits | line;
}

class AnswerQueue {
 public:
  // From now on answers have text. pieces: take_pieces() also returns it piece by piece. The
  // tokenizer must outlive the queue.
  void use_text(const tokenizer::Tokenizer& tokenizer, bool pieces);

  // Adds a request that was submitted to the engine. Lines must be added in ascending order.
  // read_bytes: position in the input after this line.
  void add_request(RequestInfo request, std::uint64_t read_bytes = 0);
  // The same for a batch line. The ids of its requests are those of engine_request().
  void add_call(RequestInfo request, BatchCall call, std::uint64_t read_bytes = 0);
  // Adds a line that is not a valid request; its answer is the error.
  void add_error(RequestInfo request, const std::string& error, std::uint64_t read_bytes = 0);
  void add_batch_error(RequestInfo request, const ApiError& error, std::uint64_t read_bytes = 0);
  // Adds a line that is already answered.
  void add_finished(std::uint64_t line, std::string text, std::uint64_t read_bytes = 0);

  // Applies the engine's update of a request that was added.
  void apply(const runtime::Update& update);

  // Requests whose unfinished answers have all reached a stop string, so that the engine can abort
  // them. Their last updates still arrive. Each request is returned once.
  std::vector<std::uint64_t> take_stopped() { return std::exchange(stopped_, {}); }
  // Lines with new pieces of all answers.
  std::string take_pieces() { return std::exchange(pieces_, {}); }

  // Lines of the finished requests at the front, which leave the queue.
  std::string take_ready();
  // When a run ends early: lines of all finished answers. The queue is empty afterwards.
  std::string take_all_done();

  bool empty() const { return entries_.empty(); }
  std::size_t held() const { return entries_.size(); }
  std::uint64_t held_bytes() const { return held_bytes_; }  // approximate

  // Totals so far.
  struct Totals {
    std::uint64_t requests = 0, answers = 0, failed = 0;  // finished
    std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
    std::uint64_t written_bytes = 0;  // input position up to which all answers are written
    std::string first_failure;        // "line 3: ..."
  };
  const Totals& totals() const { return totals_; }

 private:
  struct Entry {
    RequestInfo request;
    std::optional<BatchCall> call = std::nullopt;  // for a batch line, which has no answers
    std::vector<Answer> answers = {};
    // One per answer; none without a tokenizer.
    std::vector<std::unique_ptr<tokenizer::StreamDetokenizer>> texts = {};
    std::vector<runtime::TokenLogprobs> prompt_logprobs = {};
    std::int32_t open = 0;     // unfinished answers
    std::int32_t stopped = 0;  // how many of them have reached a stop string
    bool reported = false;     // by take_stopped()
    std::string broken = "";   // why its answers cannot be written; updates are still awaited
    std::string text = "";     // replaces the answers
    std::uint64_t read_bytes = 0;
    std::uint64_t bytes = 0;  // its share of held_bytes_
  };

  // Appends tokens to an answer, except after a stop string.
  void append_tokens(Entry& entry, std::int32_t index, const runtime::Update& update);
  Entry& find(std::uint64_t line);
  Entry& add_entry(Entry entry, std::uint64_t bytes);
  static void append_batch_answer(Entry& entry, int status, std::string_view body);
  void apply_to_call(Entry& entry, std::size_t index, const runtime::Update& update);
  void count_failure(const Entry& entry, std::string_view error);
  void fail(Entry& entry, const std::string& error);
  void finish(Entry& entry, Answer& answer, const runtime::Update& update);
  static void append_lines(std::string& out, const Entry& entry);

  const tokenizer::Tokenizer* tokenizer_ = nullptr;
  bool wants_pieces_ = false;
  std::string pieces_;
  std::vector<std::uint64_t> stopped_;
  std::deque<Entry> entries_;
  std::uint64_t held_bytes_ = 0;
  Totals totals_;
};

// Formats the progress of `generate`: a bar during the run, a summary line at the end. It prints
// nothing itself.
class GenerateProgress {
 public:
  explicit GenerateProgress(std::int64_t started_ns)
      : started_ns_(started_ns), shown_ns_(started_ns) {}

  // The next bar, which replaces the last one on the terminal; empty if it is not due. total_bytes:
  // size of the input; 0: unknown.
  std::string bar(const AnswerQueue::Totals& totals, std::uint64_t total_bytes,
                  std::int64_t now_ns);
  // The text that removes the bar from the terminal.
  std::string clear();

  // "12 requests, 12 answers in 1.20 s: 300 prompt tokens (16 cached), 192 generated, 160.0 tok/s"
  std::string summary(const AnswerQueue::Totals& totals, std::uint64_t kept_lines,
                      std::int64_t now_ns) const;

 private:
  std::int64_t started_ns_, shown_ns_;
  bool shown_ = false;
};

}  // namespace nvllm::launcher
