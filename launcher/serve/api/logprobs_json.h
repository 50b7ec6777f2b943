// Log probabilities in the formats of OpenAI's and vLLM's responses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/request.h"
#include "tokenizer/tokenizer.h"

namespace nvllm::launcher {

// How tokens are named.
struct TokenNames {
  const tokenizer::Tokenizer* tokenizer = nullptr;  // null: by their ids
  bool as_ids = false;                              // "token_id:7", for tokens that share a text

  std::string name(std::int32_t token) const;
  // The bytes of the token, possibly part of a character.
  std::string bytes(std::int32_t token) const;
};

// For chats: {"content": [{"token": ..., "logprob": ..., "bytes": [...], "top_logprobs": [...]}]}
void append_chat_logprobs(std::string& out, const TokenNames& names,
                          const std::vector<runtime::TokenLogprobs>& tokens);

// For completions. `first`: the first token of an echoed prompt, which has no logprob; -1: none.
// text_offset: offset of the next token's text in characters; updated.
struct EchoedLogprobs {
  std::int32_t first = -1;
  const std::vector<runtime::TokenLogprobs>* rest = nullptr;  // of the prompt
};
void append_completion_logprobs(std::string& out, const TokenNames& names,
                                const EchoedLogprobs& echoed,
                                const std::vector<runtime::TokenLogprobs>& tokens,
                                std::int64_t& text_offset);

// The same with an answer's token ids as keys, like vLLM's Python objects: [{"7": {"logprob": ...,
// "rank": ..., "decoded_token": ...}}, ...]
void append_sample_logprobs(std::string& out, const TokenNames& names,
                            const std::vector<runtime::TokenLogprobs>& tokens);

// vLLM's prompt_logprobs, with null for the first token: [null, {"7": {"logprob": ..., "rank": ...,
// "decoded_token": ...}}, ...]
void append_prompt_logprobs(std::string& out, const TokenNames& names,
                            const std::vector<runtime::TokenLogprobs>& tokens);

}  // namespace nvllm::launcher
