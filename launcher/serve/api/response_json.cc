#include "launcher/serve/api/response_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "tokenizer/bpe/vocabulary.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {

// --- Values ---

namespace {

bool is_plain(char c) {
  return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
}

void append_escape(std::string& out, char c) {
  constexpr char kHexDigits[] = "0123456789abcdef";
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  const auto byte = static_cast<unsigned char>(c);
  out += "\\u00";
  out += kHexDigits[byte >> 4];
  out += kHexDigits[byte & 15];
}

template <typename Number>
void append_digits(std::string& out, Number number) {
  std::array<char, 64> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number);
  out.append(text.data(), end.ptr);
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  std::size_t plain = 0;  // where the characters begin that need no escape and are not yet written
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (is_plain(text[at])) continue;
    out.append(text, plain, at - plain);
    append_escape(out, text[at]);
    plain = at + 1;
  }
  out.append(text, plain, text.size() - plain);
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  if (tokenizer::valid_utf8_prefix(text) == text.size()) {
    append_json_escaped(out, text);
  } else {
    std::string valid;
    tokenizer::append_valid_utf8(valid, text);
    append_json_escaped(out, valid);
  }
  out += '"';
}

void append_json_number(std::string& out, std::int64_t number) {
  append_digits(out, number);
}

void append_json_number(std::string& out, float number) {
  if (std::isfinite(number)) {
    append_digits(out, number);
  } else {
    out += "null";
  }
}

void append_json_ids(std::string& out, const std::vector<std::int32_t>& ids) {
  append_json_list(
      out, ids, [](std::string& to, std::int32_t id) { append_json_number(to, std::int64_t{id}); });
}

// --- Log probabilities ---

namespace {

using runtime::TokenLogprob;
using runtime::TokenLogprobs;

// Replaces minus infinity, which JSON does not support, like vLLM.
void append_logprob(std::string& out, float logprob) {
  constexpr float kMinLogprob = -9999.0F;
  append_json_number(out, std::max(logprob, kMinLogprob));
}

void append_bytes(std::string& out, std::string_view bytes) {
  append_json_list(out, bytes, [](std::string& to, char byte) {
    append_json_number(to, std::int64_t{static_cast<unsigned char>(byte)});
  });
}

// Without the closing brace.
void open_chat_token(std::string& out, const TokenNames& names, const TokenLogprob& token) {
  out += R"({"token":)";
  append_json_string(out, names.name(token.token));
  out += R"(,"logprob":)";
  append_logprob(out, token.logprob);
  out += R"(,"bytes":)";
  append_bytes(out, names.bytes(token.token));
}

void append_chat_token(std::string& out, const TokenNames& names, const TokenLogprobs& token) {
  open_chat_token(out, names, token.chosen);
  out += R"(,"top_logprobs":)";
  append_json_list(out, token.top, [&](std::string& to, const TokenLogprob& each) {
    open_chat_token(to, names, each);
    to += '}';
  });
  out += '}';
}

// The alternatives, plus the sampled token if it is not one of them.
std::vector<TokenLogprob> with_chosen(const TokenLogprobs& token) {
  std::vector<TokenLogprob> all = token.top;
  if (std::ranges::find(all, token.chosen.token, &TokenLogprob::token) == all.end()) {
    all.push_back(token.chosen);
  }
  return all;
}

// Takes the complete characters from the beginning of the bytes, and what is no character.
std::string take_characters(std::string& bytes) {
  std::size_t complete = 0;
  while (complete < bytes.size()) {
    const tokenizer::Utf8Part part =
        tokenizer::first_utf8_part(std::string_view(bytes).substr(complete));
    if (part.kind == tokenizer::Utf8Part::kTruncated) break;
    complete += part.size;
  }
  std::string text;
  tokenizer::append_valid_utf8(text, std::string_view(bytes).substr(0, complete));
  bytes.erase(0, complete);
  return text;
}

// Keyed by text. If tokens share a text, only one is kept: the sampled token, or else the most
// likely one, which comes first. open: the beginning of a character, left by the tokens before.
void append_top(std::string& out, const TokenNames& names, const TokenLogprobs& token,
                const std::string& open) {
  const auto name_of = [&](std::int32_t id) {
    if (names.by_ids()) return names.name(id);
    std::string bytes = open + names.bytes(id);
    return take_characters(bytes);
  };
  const std::string chosen = name_of(token.chosen.token);
  std::vector<std::string> seen;
  out += '{';
  for (const TokenLogprob& each : with_chosen(token)) {
    std::string name = name_of(each.token);
    if (name == chosen && each.token != token.chosen.token) continue;
    if (std::ranges::find(seen, name) != seen.end()) continue;
    if (!seen.empty()) out += ',';
    append_json_string(out, name);
    out += ':';
    append_logprob(out, each.logprob);
    seen.push_back(std::move(name));
  }
  out += '}';
}

// {"7": {"logprob": ..., "rank": ..., "decoded_token": ...}, ...}
void append_by_id(std::string& out, const TokenNames& names, const TokenLogprobs& token) {
  bool first = true;
  out += '{';
  for (const TokenLogprob& each : with_chosen(token)) {
    if (!std::exchange(first, false)) out += ',';
    out += '"' + std::to_string(each.token) + R"(":{"logprob":)";
    append_logprob(out, each.logprob);
    out += R"(,"rank":)";
    append_json_number(out, std::int64_t{each.rank});
    out += R"(,"decoded_token":)";
    append_json_string(out, names.name(each.token));
    out += '}';
  }
  out += '}';
}

std::int64_t characters(std::string_view text) {
  return std::ranges::count_if(text,
                               [](char byte) { return !tokenizer::is_utf8_continuation(byte); });
}

// The lists of a completion's logprobs, token by token.
struct CompletionLists {
  std::string tokens, logprobs, top, offsets;

  // token: nullptr: no logprob.
  void add(const TokenNames& names, std::int32_t id, const TokenLogprobs* token,
           CompletionText& text) {
    for (std::string* list : {&tokens, &logprobs, &top, &offsets}) {
      if (!list->empty()) *list += ',';
    }
    if (token == nullptr) {
      logprobs += "null";
      top += "null";
    } else {
      append_logprob(logprobs, token->chosen.logprob);
      append_top(top, names, *token, text.open);
    }
    text.open += names.bytes(id);
    const std::string added = take_characters(text.open);
    append_json_string(tokens, names.by_ids() ? names.name(id) : added);
    append_json_number(offsets, text.characters);
    text.characters += characters(added);
  }
};

std::optional<char> fallback_byte(std::string_view token) {  // of "<0x41>"
  if (token.size() != 6 || !token.starts_with("<0x")) return std::nullopt;
  unsigned value = 0;
  const char* const end = token.data() + 5;
  if (std::from_chars(token.data() + 3, end, value, 16).ptr != end) return std::nullopt;
  return static_cast<char>(value);
}

}  // namespace

std::string TokenNames::name(std::int32_t token) const {
  if (by_ids()) return "token_id:" + std::to_string(token);
  if (token < 0) return "";
  return tokenizer->decode({static_cast<tokenizer::TokenId>(token)}, false);
}

std::string TokenNames::bytes(std::int32_t token) const {
  if (tokenizer == nullptr || token < 0) return "";
  const auto id = static_cast<tokenizer::TokenId>(token);
  std::string text = tokenizer->decode({id}, false);
  const auto spelled = tokenizer->token_text(id);
  if (!spelled || text.find(tokenizer::kReplacementCharacter) == std::string::npos) return text;
  if (const auto byte = fallback_byte(*spelled)) return {*byte};
  const auto& steps = tokenizer->decoder().steps();
  const bool has_byte_chars = std::ranges::any_of(steps, [](const tokenizer::DecoderStep& step) {
    return std::holds_alternative<tokenizer::FromByteChars>(step);
  });
  if (!has_byte_chars) return text;
  std::string bytes;
  tokenizer::append_token_bytes(bytes, *spelled);
  return bytes;
}

void append_chat_logprobs(std::string& out, const TokenNames& names,
                          const std::vector<TokenLogprobs>& tokens) {
  out += R"({"content":)";
  append_json_list(out, tokens, [&](std::string& to, const TokenLogprobs& token) {
    append_chat_token(to, names, token);
  });
  out += '}';
}

void append_completion_logprobs(std::string& out, const TokenNames& names,
                                const EchoedLogprobs& echoed,
                                const std::vector<TokenLogprobs>& tokens, CompletionText& text) {
  CompletionLists lists;
  if (echoed.first >= 0) lists.add(names, echoed.first, nullptr, text);
  if (echoed.rest != nullptr) {
    for (const TokenLogprobs& each : *echoed.rest) {
      lists.add(names, each.chosen.token, &each, text);
    }
  }
  for (const TokenLogprobs& each : tokens) lists.add(names, each.chosen.token, &each, text);
  out += R"({"text_offset":[)" + lists.offsets;
  out += R"(],"token_logprobs":[)" + lists.logprobs;
  out += R"(],"tokens":[)" + lists.tokens;
  out += R"(],"top_logprobs":[)" + lists.top;
  out += "]}";
}

void append_sample_logprobs(std::string& out, const TokenNames& names,
                            const std::vector<TokenLogprobs>& tokens) {
  append_json_list(out, tokens, [&](std::string& to, const TokenLogprobs& token) {
    append_by_id(to, names, token);
  });
}

void append_prompt_logprobs(std::string& out, const TokenNames& names,
                            const std::vector<TokenLogprobs>& tokens) {
  out += "[null";
  for (const TokenLogprobs& token : tokens) {
    out += ',';
    append_by_id(out, names, token);
  }
  out += ']';
}

}  // namespace nvllm::launcher
