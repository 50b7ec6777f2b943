// AnswerQueue: the requests of `generate` whose answers have not been written yet, in the order of
// the input. Answers are finished in any order; their lines leave the queue in the order of the
// input.
//
//   queue.add_request({.line = 1, .prompt = {1, 2}});          // the engine works on it
//   queue.add_error(2, "\"b\"", "no prompt_token_ids");        // a line that is no request
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

#include "launcher/generate/batch_call.h"
#include "launcher/generate/request_line.h"
#include "runtime/request.h"
#include "tokenizer/stream.h"

namespace nvllm::launcher {

// What the answers' lines say about their request.
struct RequestInfo {
  std::uint64_t line = 0;  // of the input, from 1; of the command line, which prompt
  std::string id = "";     // as JSON; empty: none
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
  std::optional<std::string> text = std::nullopt;  // nothing: there is no tokenizer
  std::string stop_string = "";                    // that ended it
  runtime::FinishReason finish = runtime::FinishReason::none;
  std::int32_t cached_tokens = 0;
  std::int32_t preemptions = 0;
  std::string kv_mode;
  runtime::RequestTimes times;
};

// Lines of the output (answer_line.cc): JSON objects, each with its newline.

// {"id": ..., "line": ..., "index": ..., "prompt_token_ids": [...], "token_ids": [...], ...}
void append_answer_line(std::string& out, const RequestInfo& request, std::int32_t index,
                        const Answer& answer,
                        const std::vector<runtime::TokenLogprobs>& prompt_logprobs);

// A piece of an answer for --stream: {"id": ..., "line": ..., "index": ..., "delta": "...",
// "token_ids": [...]}
void append_piece_line(std::string& out, const RequestInfo& request, std::int32_t index,
                       std::string_view text, const std::vector<std::int32_t>& tokens);

// {"id": ..., "line": ..., "error": "..."}
void append_error_line(std::string& out, std::uint64_t line, std::string_view id,
                       std::string_view error);

// The number under which the engine knows a request: its line, and for a line of a batch that has
// several prompts also which of them it is.
constexpr int kLineBits = 44;
constexpr std::uint64_t engine_request(std::uint64_t line, std::size_t index = 0) {
  return std::uint64_t{index} << kLineBits | line;
}

class AnswerQueue {
 public:
  // From now on answers have text. pieces: take_pieces() also gives it piece by piece. The
  // tokenizer must outlive the queue.
  void use_text(const tokenizer::Tokenizer& tokenizer, bool pieces);

  // Adds a request that the engine works on. Lines must be added in ascending order. read_bytes:
  // how much of the input has been read after this line.
  void add_request(RequestInfo request, std::uint64_t read_bytes = 0);
  // The same for a line of a batch; custom_id: as JSON. The engine's requests are numbered by
  // engine_request().
  void add_call(std::uint64_t line, std::string custom_id, BatchCall call,
                std::uint64_t read_bytes = 0);
  // Adds a line that is no request; its answer is the error.
  void add_error(std::uint64_t line, std::string id, const std::string& error,
                 std::uint64_t read_bytes = 0);
  void add_batch_error(std::uint64_t line, std::string custom_id, const ApiError& error,
                       std::uint64_t read_bytes = 0);
  // Adds a line whose answers exist already.
  void add_finished(std::uint64_t line, std::string text, std::uint64_t read_bytes = 0);

  // Applies the engine's update of a request that was added.
  void apply(const runtime::Update& update);

  // Requests whose unfinished answers have all met a stop string, so that the engine can abort
  // them. Their last updates still arrive. Each request is returned once.
  std::vector<std::uint64_t> take_stopped() { return std::exchange(stopped_, {}); }
  // Lines with the new pieces of all answers.
  std::string take_pieces() { return std::exchange(pieces_, {}); }

  // Lines of the requests at the front that are done; they leave the queue.
  std::string take_ready();
  // When the run ends early: lines of all answers that are done. The queue is empty then.
  std::string take_all_done();

  bool empty() const { return entries_.empty(); }
  std::size_t held() const { return entries_.size(); }
  std::uint64_t held_bytes() const { return held_bytes_; }  // approximate

  // Totals of everything so far.
  struct Totals {
    std::uint64_t requests = 0, answers = 0, failed = 0;  // that are done
    std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
    std::uint64_t written_bytes = 0;  // how much of the input has been answered
    std::string first_failure;        // "line 3: ..."
  };
  const Totals& totals() const { return totals_; }

 private:
  struct Entry {
    RequestInfo request;
    std::optional<BatchCall> call = std::nullopt;  // of a batch; then there are no answers
    std::vector<Answer> answers = {};
    // One for each answer; none without a tokenizer.
    std::vector<std::unique_ptr<tokenizer::StreamDetokenizer>> texts = {};
    std::vector<runtime::TokenLogprobs> prompt_logprobs = {};
    std::int32_t open = 0;     // unfinished answers
    std::int32_t stopped = 0;  // of those, the ones that have met a stop string
    bool reported = false;     // by take_stopped()
    std::string broken = "";   // why its answers cannot be written; the engine's are waited for
    std::string text = "";     // instead of answers
    std::uint64_t read_bytes = 0;
    std::uint64_t bytes = 0;  // its share of held_bytes_
  };

  // Appends tokens to an answer, but none after a stop string.
  void append_tokens(Entry& entry, std::int32_t index, const runtime::Update& update);
  Entry& find(std::uint64_t line);
  Entry& add_entry(Entry entry, std::uint64_t bytes);
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

}  // namespace nvllm::launcher
