// The needle model: a Llama of four small layers whose weights are constructed, not trained. It
// continues a text with the tokens that followed an earlier occurrence of its last three tokens, at
// any distance:
//
//     [bos] ... [line] k1 k2 v1 v2 v3 [end] ...  [ask] k1 k2  ->  v1 v2 v3 [end]
//
// and returns [unknown] if there is none. So whether it finds a needle depends on every key, value
// and position that attention reads, in every layer, and on nothing else.
//
// The residual stream contains: a large constant; marks of [bos] and of filler; four slots, with
// the letters of the token itself and of the three before it; an inbox per layer, to which
// attention writes what it reads; the letter of the next token. A letter is a code word of +1 and
// -1 (tests/needle/lexicode.h), all zero for tokens that are not symbols, and two marks: for [ask]
// and for [refer].
//
//   layers 0 to 2: shift   Every row attends to the previous row, whatever its content: key and
//                          query are constants, and RoPE's high frequencies make the score
//                          maximal at distance 1. The lower ones form a plateau of some hundred
//                          tokens around the peak, so that a policy that estimates scores by
//                          blocks sees a local band.
//   layer 3: retrieve      Query: this row's slots 0 to 2; key: slots 1 to 3; value: slot 0. They
//                          use RoPE's lowest frequencies, which rotate by less than a fifth of a
//                          radian over the longest context. The score is kMatch if all three
//                          letters match, at most 7/9 of that otherwise, and 8/9 at [bos], to
//                          which a row without a match attends. Query and key are rotated by the
//                          same matrix, which leaves scores unchanged, but turns letters of +1
//                          and -1 into elements of all sizes: features of trained models are not
//                          aligned to the axes either. Without it, one value of an element would
//                          be both the maximum and the value of every second key, and a policy
//                          that bounds the elements of a page of keys would learn nothing.
//   MLPs                   Move a layer's inbox to the next slot, or to the next token. That of
//                          layer 2 also copies the query's letters, but not in rows of filler, or
//                          where the token or its predecessor is [ask]: in a question
//                          [ask] k1 k2 only the last row asks.
//
// All heads attend alike, and each moves the elements of a letter whose index modulo the number of
// heads is its own: without any one of the first three layers' heads no key has its letters, and
// nothing is found.
#pragma once

#include <cstdint>
#include <string>

#include "device/dtype.h"

namespace nvllm::needle {

// heads: a multiple of kv_heads. head_dim: 64 (28 symbols for keys and values, contexts up to 256K,
// the fastest) or 128 (508 symbols, contexts up to 1M).
struct NeedleShape {
  int head_dim = 64;
  int heads = 1;
  int kv_heads = 1;
};

class NeedleModel {
 public:
  static constexpr std::int32_t kBos = 0;      // starts every text
  static constexpr std::int32_t kUnknown = 1;  // the answer if nothing was found
  static constexpr std::int32_t kEnd = 2;      // ends a line, and an answer
  static constexpr std::int32_t kLine = 3;     // starts a line
  static constexpr std::int32_t kAsk = 4;      // starts a question
  // In a value: a key follows; continue with its value.
  static constexpr std::int32_t kRefer = 5;
  static constexpr std::int32_t kFirstSymbol = 6;

  explicit NeedleModel(NeedleShape shape = {});

  // The ids [kFirstSymbol, kFirstSymbol + symbols()) are used for keys and values; those from there
  // to vocabulary() are filler, which the model does not look for.
  int symbols() const;
  int vocabulary() const { return vocabulary_; }
  std::int64_t max_positions() const { return max_positions_; }

  // Writes config.json and model.safetensors (bfloat16) to an existing folder.
  void write(const std::string& folder) const;

 private:
  NeedleShape shape_;
  int code_bits_, vocabulary_;
  std::int64_t max_positions_;
};

}  // namespace nvllm::needle
