// Parts of responses as JSON text. Used for streamed tokens, so it is minimal: no tree of values,
// no allocation except for the text itself.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/request.h"
#include "tokenizer/tokenizer.h"

namespace nvllm::launcher {

// --- Values ---

// The content of a string without quotes. The text must be valid UTF-8, as detokenized text is.
void append_json_escaped(std::string& out, std::string_view text);
// A string in quotes; bytes that are not UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text);
// The shortest text that parses to the same number; null for values that JSON does not support.
void append_json_number(std::string& out, std::int64_t number);
void append_json_number(std::string& out, float number);

template <typename List, typename AppendItem>
void append_json_list(std::string& out, const List& list, AppendItem append_item) {
  out += '[';
  bool first = true;
  for (const auto& item : list) {
    if (!first) out += ',';
    first = false;
    append_item(out, item);
  }
  out += ']';
}

void append_json_ids(std::string& out, const std::vector<std::int32_t>& ids);

// --- Log probabilities in the formats of OpenAI's and vLLM's responses ---

// How tokens are named.
struct TokenNames {
  const tokenizer::Tokenizer* tokenizer = nullptr;  // null: by their ids
  bool as_ids = false;                              // "token_id:7", for tokens that share a text

  bool by_ids() const { return as_ids || tokenizer == nullptr; }
  std::string name(std::int32_t token) const;
  // The bytes of the token, possibly part of a character.
  std::string bytes(std::int32_t token) const;
};

// For chats: {"content": [{"token": ..., "logprob": ..., "bytes": [...], "top_logprobs": [...]}]}
void append_chat_logprobs(std::string& out, const TokenNames& names,
                          const std::vector<runtime::TokenLogprobs>& tokens);

// The text of a completion's tokens so far. A character that several tokens spell belongs to the
// last of them, and the others have no text, as in vLLM.
struct CompletionText {
  std::int64_t characters = 0;
  std::string open = {};  // the beginning of a character
};

// For completions. `first`: the first token of an echoed prompt, which has no logprob; -1: none.
// text: of the tokens before; updated.
struct EchoedLogprobs {
  std::int32_t first = -1;
  const std::vector<runtime::TokenLogprobs>* rest = nullptr;  // of the prompt
};
void append_completion_logprobs(std::string& out, const TokenNames& names,
                                const EchoedLogprobs& echoed,
                                const std::vector<runtime::TokenLogprobs>& tokens,
                                CompletionText& text);

// The same with an answer's token ids as keys, like vLLM's Python objects: [{"7": {"logprob": ...,
// "rank": ..., "decoded_token": ...}}, ...]
void append_sample_logprobs(std::string& out, const TokenNames& names,
                            const std::vector<runtime::TokenLogprobs>& tokens);

// vLLM's prompt_logprobs, with null for the first token: [null, {"7": {"logprob": ..., "rank": ...,
// "decoded_token": ...}}, ...]
void append_prompt_logprobs(std::string& out, const TokenNames& names,
                            const std::vector<runtime::TokenLogprobs>& tokens);

}  // namespace nvllm::launcher
