// Texts, ids and patterns. The first byte selects the kind; the rest is a text to encode, decode
// and stream, or a pattern and, after a newline, a text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/stream.h"
#include "tokenizer/unicode/utf8.h"

namespace {

using namespace nvllm::tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

const char* const kTokenizers[] = {
    R"({"model":{"vocab":{"a":0,"b":1,"ab":2,"\u2581":3,"\u2581a":4,"<0xC3>":5,"<0xA9>":6,
                          "<unk>":7},
                 "merges":["a b","\u2581 a"],"byte_fallback":true,"unk_token":"<unk>",
                 "fuse_unk":true},
        "added_tokens":[{"content":"<s>","special":true,"lstrip":true},
                        {"content":"b b","rstrip":true}],
        "normalizer":{"type":"Sequence","normalizers":[
            {"type":"NFKC"},{"type":"Prepend","prepend":"\u2581"},
            {"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},
        "decoder":{"type":"Sequence","decoders":[
            {"type":"Replace","pattern":{"String":"\u2581"},"content":" "},
            {"type":"ByteFallback"},{"type":"Fuse"},
            {"type":"Strip","content":" ","start":1,"stop":0}]}})",
    R"({"model":{"vocab":{"a":0,"b":1,"ab":2,"\u0120":3,"\u0120a":4,"\u00c3":5,"\u00a9":6,"?":7},
                 "merges":["a b","\u0120 a"],"unk_token":"?"},
        "added_tokens":[{"content":"ab","single_word":true},
                        {"content":"a\u00e9","normalized":true}],
        "normalizer":{"type":"NFC"},
        "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true},
        "decoder":{"type":"ByteLevel"}})"};

void fuzz_text(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<TokenId> ids = tokenizer.encode(text, true);
  const std::string decoded = tokenizer.decode(ids, false);
  require(valid_utf8_prefix(decoded) == decoded.size());
  require(tokenizer.encode(MarkedText{std::string(text)}, true) == ids);
  for (const TokenId id : tokenizer.encode(MarkedText::outside(std::string(text)), true)) {
    require(!tokenizer.is_special(id));
  }
  MarkedText half{std::string(text.substr(0, text.size() / 2))};
  half.append(MarkedText::outside(std::string(text.substr(text.size() / 2))));
  (void)tokenizer.encode(half, true);
  StreamDetokenizer stream(tokenizer, {.skip_special_tokens = false});
  std::string streamed;
  for (const TokenId id : ids) streamed += stream.push(id);
  require(streamed + stream.finish() == decoded);
}

void fuzz_scanners(std::string_view bytes) {
  std::string text;
  append_valid_utf8(text, bytes);
  for (const WordPattern pattern :
       {WordPattern::kGpt2, WordPattern::kOneDigit, WordPattern::kThreeDigits}) {
    const RegexProgram program = compile_regex(pattern_text(pattern));
    RegexMatcher matcher(program, text);
    for (std::size_t at = 0; at < text.size();) {
      const auto match = matcher.next(at);
      require(match && match->begin == at);
      at = word_end(pattern, text, at);
      require(at == match->end);
    }
  }
}

void fuzz_pattern(std::string_view bytes) {
  std::string all;
  append_valid_utf8(all, bytes);
  const std::size_t end = all.find('\n');
  const std::string_view text =
      end == std::string::npos ? "" : std::string_view(all).substr(end + 1);
  try {
    const RegexProgram program = compile_regex(std::string_view(all).substr(0, end));
    RegexMatcher matcher(program, text);
    for (std::size_t at = 0; const auto match = matcher.next(at);) {
      require(match->begin >= at && match->end >= match->begin && match->end <= text.size());
      at = match->end;
    }
  } catch (const nvllm::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: fuzz_text(*parse_tokenizer(kTokenizers[0]), text); break;
    case 1: fuzz_text(*parse_tokenizer(kTokenizers[1]), text); break;
    case 2: fuzz_scanners(text); break;
    default: fuzz_pattern(text);
  }
  return 0;
}
