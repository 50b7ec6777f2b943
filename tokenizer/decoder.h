// The decoder converts tokens to text, one by one; a complete text is a stream run to its end.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace nvllm::tokenizer {

struct FromByteChars {};  // all tokens' bytes as one text, with U+FFFD for invalid UTF-8
struct ByteFallback {
};               // runs of <0x00> … <0xFF> become text, or one U+FFFD each if they are not UTF-8
struct Fuse {};  // all tokens become one
struct FromMetaspace {
  std::string replacement;
  bool drops_first;  // those in the first token were not in the text
};
struct StripChar {  // removes up to this many of a character at both ends of each token
  std::string c;
  std::size_t start, stop;
};
using DecoderStep =
    std::variant<FromByteChars, ByteFallback, Fuse, FromMetaspace, StripChar, Replacement>;

class Decoder {
 public:
  // An Error if all steps together exceed the limits of normalizer.h.
  void add(DecoderStep step);
  // Without steps, tokens are joined by spaces.
  const std::vector<DecoderStep>& steps() const { return steps_; }

 private:
  std::vector<DecoderStep> steps_;
  ReplaceGrowth growth_;
};

// Appends text as soon as no later token can change it, in complete characters. The total work is
// linear in the bytes of the tokens.
class DecoderStream {
 public:
  // The decoder must outlive the stream.
  explicit DecoderStream(const Decoder& decoder);

  void push(std::string_view token, std::string& out);
  // Call after the last token.
  void finish(std::string& out);

 private:
  class StepRunner;

  struct State {
    // Tokens arrive as fragments of a single one, because an earlier step fused them.
    bool fused = false;
    std::string held;          // text that a later token may still change
    std::size_t stripped = 0;  // StripChar, fused: number dropped at the start
    bool started = false;  // StripChar, fused: the start is over; FromMetaspace: a token was seen
  };

  void feed(std::size_t step, std::string_view token, std::string& out);

  const Decoder& decoder_;
  std::vector<State> states_;
  bool first_ = true;
};

}  // namespace nvllm::tokenizer
