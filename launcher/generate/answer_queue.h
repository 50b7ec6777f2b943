// AnswerBook: what was asked and has not been written yet, in the order of the input. Answers come in any
// order; their lines leave in the input's.
//
//   book.expect({.line = 1, .prompt = {1, 2}});          // a request that the engine works on
//   book.refuse(2, "\"b\"", "no prompt_token_ids");     // a line that is none
//   book.take(update);
//   writer.write(book.take_ready());
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "launcher/generate/answer_line.h"
#include "runtime/request.h"
#include "tokenizer/stream.h"

namespace nvllm::launcher {

class AnswerBook {
 public:
  // From now on answers have text. pieces: it also comes in pieces, while the answers grow. The tokenizer
  // must outlive the book.
  void use_text(const tokenizer::Tokenizer& tokenizer, bool pieces);

  // Lines must come in ascending order. read_bytes: how far the input has been read after it.
  void expect(Asked asked, std::uint64_t read_bytes = 0);
  // A line that is no request: its answer says why.
  void refuse(std::uint64_t line, std::string id, const std::string& error,
              std::uint64_t read_bytes = 0);
  // A line whose answers are there already.
  void add(std::uint64_t line, std::string text, std::uint64_t read_bytes = 0);

  // Of a request that is expected: its number is its line.
  void take(const runtime::Update& update);

  // Requests all of whose open answers have met a stop string: the engine need not go on with them. Their
  // last updates come nevertheless.
  std::vector<std::uint64_t> take_stopped() { return std::exchange(stopped_, {}); }
  // Lines of what is new of any answers.
  std::string take_pieces() { return std::exchange(pieces_, {}); }

  // Lines of the requests at the front that are done; they leave the book.
  std::string take_ready();
  // At an early end: lines of all answers that are done. Nothing is left then.
  std::string take_all_done();

  bool empty() const { return entries_.empty(); }
  std::size_t held() const { return entries_.size(); }
  std::uint64_t held_bytes() const { return held_bytes_; }  // roughly

  // Of everything so far.
  struct Totals {
    std::uint64_t requests = 0, answers = 0, failed = 0;  // that are done
    std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
    std::uint64_t written_bytes = 0;  // how much of the input has left the book as answers
    std::string first_failure;        // "line 3: ..."
  };
  const Totals& totals() const { return totals_; }

 private:
  struct Entry {
    Asked asked;
    std::vector<Answer> answers = {};
    // Of each answer; none without a tokenizer.
    std::vector<std::unique_ptr<tokenizer::StreamDetokenizer>> texts = {};
    std::vector<runtime::TokenLogprobs> prompt_logprobs = {};
    std::int32_t open = 0;     // answers without an end
    std::int32_t stopped = 0;  // of those: answers that have met a stop string
    bool told = false;         // take_stopped() has it, or had it
    std::string text = "";     // instead of answers
    std::uint64_t read_bytes = 0;
    std::uint64_t bytes = 0;  // its part of held_bytes_
  };

  // Takes tokens into an answer; of those after a stop string none.
  void take_tokens(Entry& entry, std::int32_t index, const runtime::Update& update);
  Entry& find(std::uint64_t line);
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
