// The pre-tokenizer splits text into words, each of which is encoded separately.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "tokenizer/regex/regex.h"

namespace nvllm::tokenizer {

// How text is split at the matches of a pattern.
enum class SplitBehavior {
  kRemoved,
  kIsolated,            // each match is a piece
  kMergedWithPrevious,  // a match ends the piece before it
  kMergedWithNext,      // a match starts the piece after it
  kContiguous,          // adjacent matches are one piece
};

struct RegexSplit {
  RegexProgram program;
  WordPattern fast = WordPattern::kNone;  // the same pattern, if a fast scanner exists for it
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // matches and the text between them swap roles
};

// Isolates the matches of a regular expression.
RegexSplit word_split(std::string_view regex);

// Splits at single characters of a kind.
struct CharSplit {
  enum Kind { kPunctuation, kNumber, kWhiteSpace } kind;
  SplitBehavior behavior;
};

// Keeps runs of \w, and runs of characters that are neither \w nor spaces.
struct WhitespaceWords {};

enum class PrependScheme { kAlways, kFirst, kNever };

// Spaces become `replacement` (U+2581), and each starts a word if `split`.
struct Metaspace {
  std::string replacement;
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};

struct PrefixSpace {};  // adds a space before a piece without one
struct ToByteChars {};  // into the byte-level alphabet

using PreTokenizerStep =
    std::variant<RegexSplit, CharSplit, WhitespaceWords, Metaspace, PrefixSpace, ToByteChars>;

// Receives the words.
using WordSink = std::function<void(std::string_view)>;

class PreTokenizer {
 public:
  // Appends a step: one of PreTokenizerStep's alternatives. An Error if there are kMaxSteps.
  template <typename Step>
  void add(Step step) {
    if (steps_.size() == kMaxSteps) fail("pre_tokenizer: it has more than ", kMaxSteps, " steps");
    steps_.emplace_back(std::in_place_type<Step>, std::move(step));
  }

  // If the last step, and no other, converts bytes to the byte-level alphabet: removes it and
  // returns true. The words are plain bytes then.
  bool drop_final_byte_chars();

  // Splits one piece of text. `at_start`: it is at the start of the whole text. An Error if the
  // steps write kMaxWritten times as much text as there is: each step of a model writes up to three
  // times its text, and few steps write any.
  void run(std::string_view text, bool at_start, const WordSink& sink) const {
    std::size_t may_write = kMaxWritten * text.size() + kMaxPrependedBytes;
    run_step(0, text, at_start, {sink, may_write});
  }

 private:
  class StepRunner;

  static constexpr std::size_t kMaxSteps = 64, kMaxWritten = 32, kMaxPrependedBytes = 64;

  // The receiver of words, and how many bytes steps may still write.
  struct Output {
    const WordSink& sink;
    std::size_t& may_write;
  };
  void run_step(std::size_t step, std::string_view text, bool at_start, const Output& out) const;

  std::vector<PreTokenizerStep> steps_;
};

}  // namespace nvllm::tokenizer
