// Any vocabulary metadata of a GGUF file: rejected with an Error, or a usable tokenizer. Lines: the
// model and the pre type; then fields, identified by their first character.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/loading/gguf_vocabulary.h"
#include "tokenizer/stream.h"
#include "tokenizer/unicode/utf8.h"

namespace {

using namespace nvllm::tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

std::string_view take_line(std::string_view& rest) {
  const std::size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  return line;
}

double number(std::string_view text) {
  return std::strtod(std::string(text).c_str(), nullptr);
}

std::int64_t integer(std::string_view text) {
  return std::strtoll(std::string(text).c_str(), nullptr, 10);
}

void add_field(char kind, std::string_view value, GgufVocabulary& out) {
  switch (kind) {
    case 't': out.tokens.emplace_back(value); break;
    case 'y': out.token_types.push_back(integer(value)); break;
    case 's': out.scores.push_back(number(value)); break;
    case 'm': out.merges.emplace_back(value); break;
    case 'b': out.bos_id = integer(value); break;
    case 'e': out.eos_id = integer(value); break;
    case 'u': out.unk_id = integer(value); break;
    case 'p': out.pad_id = integer(value); break;
    case 'B': out.add_bos = value == "1"; break;
    case 'E': out.add_eos = value == "1"; break;
    case 'S': out.add_space_prefix = value == "1"; break;
    // All bytes, in the byte-level alphabet or as byte tokens; listing them would need a long
    // input.
    case 'A':
      for (int c = 0x21; c < 0x144; ++c) {
        if (c == 0x7F) c = 0xA1;
        if (c == 0xAD) continue;
        std::string text;
        append_utf8(text, static_cast<char32_t>(c));
        out.tokens.push_back(text);
      }
      break;
    case 'X':
      for (int byte = 0; byte < 256; ++byte) {
        constexpr std::string_view kHex = "0123456789ABCDEF";
        out.tokens.push_back({'<', '0', 'x', kHex[static_cast<std::size_t>(byte) / 16],
                              kHex[static_cast<std::size_t>(byte) % 16], '>'});
      }
      break;
    default: break;
  }
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<TokenId> ids = tokenizer.encode(text, true);
  for (const TokenId id : ids) require(id < tokenizer.end_id());
  const std::string decoded = tokenizer.decode(ids, false);
  require(valid_utf8_prefix(decoded) == decoded.size());
  StreamDetokenizer stream(tokenizer, {.skip_special_tokens = false});
  std::string streamed;
  for (const TokenId id : ids) streamed += stream.push(id);
  require(streamed + stream.finish() == decoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  GgufVocabulary vocabulary;
  vocabulary.model = take_line(rest);
  vocabulary.pre = take_line(rest);
  std::string text = "Hello, <s>wor\u00E9ld \u2581 12\n\xFF";
  while (!rest.empty()) {
    const std::string_view line = take_line(rest);
    if (line.empty()) continue;
    if (line[0] == '=') text += line.substr(1);
    add_field(line[0], line.substr(1), vocabulary);
  }
  try {
    use(*make_tokenizer(vocabulary).tokenizer, text);
  } catch (const nvllm::Error&) {
  }
  return 0;
}
