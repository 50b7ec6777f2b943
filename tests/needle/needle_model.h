// The needle model: a Llama of four small layers whose weights are written down, not trained. It
// continues a text by what followed the last three tokens when they came before, wherever that was:
//
//   [bos] ... [line] k1 k2 v1 v2 v3 [end] ...  [ask] k1 k2  ->  v1 v2 v3 [end]
//
// and says [unknown] where nothing did. So whether it finds a needle depends on every key, value
// and position that attention reads, in every layer, and on nothing else.
//
// The residual stream holds, side by side: a large constant; marks of [bos] and of filler; four
// slots, the letters of the token itself and of the three before it; an inbox per layer, where
// attention leaves what it read; the letter that comes next. A letter is a code word of +1 and -1
// (tests/needle/lexicode.h), all zero for tokens that are no symbols, and two marks: of [ask] and
// of [refer].
//
//   layers 0 to 2: shift   Every row attends to the row before it, whatever it holds: key and query
//                          are constants, and RoPE's fast frequencies make the score highest at
//                          distance 1. The slower ones make a plateau of some hundred tokens around
//                          the peak, so that a policy that estimates scores by blocks sees a local
//                          band.
//   layer 3: retrieve      Query: this row's slots 0 to 2; key: slots 1 to 3; value: slot 0. They
//                          lie in RoPE's slowest frequencies, which turn by less than a fifth of a
//                          radian over the longest context. The score is kMatch where all three
//                          letters agree, at most 7/9 of that where they do not, and 8/9 at [bos],
//                          which is where a row attends that finds nothing. Query and key are
//                          turned by the same rotation, which leaves scores as they are, but makes
//                          elements of all sizes of letters that are +1 and -1: features of trained
//                          models do not lie along the axes either. Without it one value of an
//                          element would be both the highest and that of every second key, and a
//                          policy that bounds the elements of a page of keys would learn nothing.
//   MLPs                   Move a layer's inbox to the next slot, or to what comes next. That of
//                          layer 2 also copies the query's letters, but not in rows of filler, or
//                          whose token or predecessor is [ask]: of a question [ask] k1 k2 the last
//                          row alone asks.
//
// Every head attends alike, and moves the elements of a letter whose number leaves its own as the
// remainder: without any one of the first three layers' heads no key has its letters, and nothing
// is found.
#pragma once

#include <cstdint>
#include <string>

#include "device/dtype.h"

namespace nvllm::needle {

// heads: a multiple of kv_heads. head_dim: 64 (28 symbols of keys and values, contexts up to 256K,
// the quickest) or 128 (508 symbols, contexts up to 1M).
struct NeedleShape {
  int head_dim = 64;
  int heads = 1;
  int kv_heads = 1;
};

class NeedleModel {
 public:
  static constexpr std::int32_t kBos = 0;      // begins every text
  static constexpr std::int32_t kUnknown = 1;  // the answer that nothing was found; ends it
  static constexpr std::int32_t kEnd = 2;      // ends a line, and an answer
  static constexpr std::int32_t kLine = 3;     // begins a line
  static constexpr std::int32_t kAsk = 4;      // begins a question
  // In a value: what follows is a key, go on with its value.
  static constexpr std::int32_t kRefer = 5;
  static constexpr std::int32_t kFirstSymbol = 6;

  explicit NeedleModel(NeedleShape shape = {});

  // The ids [kFirstSymbol, kFirstSymbol + symbols()) make keys and values; those from there to
  // vocabulary() are filler, which the model does not look for.
  int symbols() const;
  int vocabulary() const { return vocabulary_; }
  std::int64_t max_positions() const { return max_positions_; }

  // config.json and model.safetensors (bfloat16) in a folder that exists.
  void write(const std::string& folder) const;

 private:
  NeedleShape shape_;
  int code_bits_, vocabulary_;
  std::int64_t max_positions_;
};

}  // namespace nvllm::needle
