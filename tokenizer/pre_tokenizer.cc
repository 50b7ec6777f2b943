#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tokenizer/bpe/vocabulary.h"
#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

bool is_of_kind(char32_t c, CharSplit::Kind kind) {
  switch (kind) {
    case CharSplit::kPunctuation: return char_record(c).has(kPunctuation);
    case CharSplit::kNumber: return char_record(c).has(kNumeric);
    case CharSplit::kWhiteSpace: return is_white_space(c);
  }
  return false;
}

// Converts the matches of a pattern to pieces, according to a SplitBehavior. Takes matches and
// emits pieces (begin, end) from left to right; some pieces are empty.
template <typename Emit>
class Splitter {
 public:
  Splitter(SplitBehavior behavior, bool invert, Emit emit)
      : behavior_(behavior), invert_(invert), emit_(std::move(emit)) {}

  auto matches() {
    return [this](std::size_t begin, std::size_t end) {
      if (begin > done_) add(done_, begin, invert_);
      add(begin, end, !invert_);
      done_ = end;
    };
  }

  void finish(std::size_t size) {
    if (done_ < size) add(done_, size, invert_);
    if (has_held_) emit_(held_begin_, held_end_);
  }

 private:
  // The next part of the text. It is joined to the held piece, or the held piece is complete.
  void add(std::size_t begin, std::size_t end, bool is_match) {
    bool joins = false;
    switch (behavior_) {
      case SplitBehavior::kRemoved:
        if (!is_match) emit_(begin, end);
        return;
      case SplitBehavior::kIsolated: emit_(begin, end); return;
      case SplitBehavior::kContiguous: joins = is_match == held_is_match_; break;
      case SplitBehavior::kMergedWithPrevious: joins = is_match && !held_is_match_; break;
      case SplitBehavior::kMergedWithNext: joins = !is_match && held_is_match_; break;
    }
    if (has_held_ && joins) {
      held_end_ = end;
    } else {
      if (has_held_) emit_(held_begin_, held_end_);
      held_begin_ = begin;
      held_end_ = end;
      has_held_ = true;
    }
    held_is_match_ = is_match;
  }

  SplitBehavior behavior_;
  bool invert_;
  Emit emit_;
  std::size_t done_ = 0;
  bool has_held_ = false, held_is_match_ = false;
  std::size_t held_begin_ = 0, held_end_ = 0;
};

// Calls found(begin, end) for each match, from left to right.
template <typename Found>
void find_matches(const RegexSplit& split, std::string_view text, Found&& found) {
  if (split.fast != WordPattern::kNone) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = word_end(split.fast, text, at);
      found(at, end);
      at = end;
    }
    return;
  }
  RegexMatcher matcher(split.program, text);
  std::size_t at = 0;
  while (const auto match = matcher.next(at)) {
    found(match->begin, match->end);
    at = match->end;
  }
}

template <typename Found>
void find_matches(const CharSplit& split, std::string_view text, Found&& found) {
  std::size_t at = 0;
  for_each_char(text, [&](char32_t c, std::string_view bytes) {
    if (is_of_kind(c, split.kind)) found(at, at + bytes.size());
    at += bytes.size();
  });
}

}  // namespace

RegexSplit word_split(std::string_view regex) {
  return {.program = compile_regex(regex), .fast = known_word_pattern(regex)};
}

// Runs one step and passes each of its pieces to the next step.
class PreTokenizer::StepRunner {
 public:
  StepRunner(const PreTokenizer& all, std::size_t step, std::string_view text, bool at_start,
             const Output& out)
      : all_(all), step_(step), text_(text), at_start_(at_start), out_(out) {}

  void operator()(const RegexSplit& split) const { run_split(split, split.invert); }
  void operator()(const CharSplit& split) const { run_split(split, false); }

  void operator()(const WhitespaceWords&) const {
    enum class Kind { kWord, kSpace, kOther };
    std::size_t begin = 0;
    Kind last = Kind::kSpace;
    for (std::size_t at = 0; at < text_.size();) {
      const DecodedChar next = decode_utf8(text_.data() + at);
      const CharRecord& record = char_record(next.c);
      const Kind kind = record.has(kRustWord)     ? Kind::kWord
                        : record.has(kWhiteSpace) ? Kind::kSpace
                                                  : Kind::kOther;
      if (kind != last) {
        if (last != Kind::kSpace) piece(begin, at);
        begin = at;
        last = kind;
      }
      at += next.size;
    }
    if (last != Kind::kSpace) piece(begin, text_.size());
  }

  void operator()(const Metaspace& metaspace) const {
    std::string text;
    text.reserve(text_.size() + metaspace.replacement.size());
    const bool may_prepend = metaspace.prepend == PrependScheme::kAlways ||
                             (metaspace.prepend == PrependScheme::kFirst && at_start_);
    const bool has_prefix = text_.front() == ' ' || text_.starts_with(metaspace.replacement);
    if (may_prepend && !has_prefix) text = metaspace.replacement;
    for (const char c : text_) {
      if (c == ' ') {
        text += metaspace.replacement;
      } else {
        text += c;
      }
    }
    if (!metaspace.split) return replace_by(text);
    count(text);
    const StepRunner next(all_, step_, text, at_start_, out_);
    std::size_t begin = 0;
    for (std::size_t at; (at = text.find(metaspace.replacement, begin + 1)) != std::string::npos;) {
      next.piece(begin, at);
      begin = at;
    }
    next.piece(begin, text.size());
  }

  void operator()(const PrefixSpace&) const {
    if (text_.front() == ' ') return piece(0, text_.size());
    replace_by(std::string(" ").append(text_));
  }

  void operator()(const ToByteChars&) const {
    std::string text;
    append_byte_chars(text, text_);
    replace_by(text);
  }

 private:
  template <typename Split>
  void run_split(const Split& split, bool invert) const {
    Splitter splitter(split.behavior, invert,
                      [this](std::size_t begin, std::size_t end) { piece(begin, end); });
    find_matches(split, text_, splitter.matches());
    splitter.finish(text_.size());
  }
  void count(std::string_view written) const {
    if (written.size() > out_.may_write) {
      fail("the pre-tokenizer writes more than ", kMaxWritten, " bytes for each byte of text");
    }
    out_.may_write -= written.size();
  }
  // Passes on a changed text as one piece.
  void replace_by(std::string_view text) const {
    count(text);
    StepRunner(all_, step_, text, at_start_, out_).piece(0, text.size());
  }
  void piece(std::size_t begin, std::size_t end) const {
    all_.run_step(step_ + 1, text_.substr(begin, end - begin), at_start_ && begin == 0, out_);
  }
  const PreTokenizer& all_;
  std::size_t step_;
  std::string_view text_;
  bool at_start_;
  const Output& out_;
};

void PreTokenizer::run_step(std::size_t step, std::string_view text, bool at_start,
                            const Output& out) const {
  if (text.empty()) return;
  if (step == steps_.size()) return out.sink(text);
  std::visit(StepRunner(*this, step, text, at_start, out), steps_[step]);
}

bool PreTokenizer::drop_final_byte_chars() {
  const auto is_byte_chars = [](const PreTokenizerStep& step) {
    return std::holds_alternative<ToByteChars>(step);
  };
  if (std::ranges::count_if(steps_, is_byte_chars) != 1 || !is_byte_chars(steps_.back()))
    return false;
  steps_.pop_back();
  return true;
}

}  // namespace nvllm::tokenizer
