#include "tokenizer/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "tokenizer/component_json.h"
#include "tokenizer/gguf_pre.h"
#include "tokenizer/utf8.h"

namespace nvllm::tokenizer {
namespace {

GgufTokenType type_of(const GgufVocabulary& vocabulary, std::size_t id) {
  return vocabulary.token_types.empty() ? GgufTokenType::normal
                                        : GgufTokenType{vocabulary.token_types[id]};
}

// Rows of the embedding that no token has are filled up with these when a file is made.
bool is_padding(const GgufVocabulary& vocabulary, std::size_t id) {
  return type_of(vocabulary, id) == GgufTokenType::unused &&
         vocabulary.tokens[id] == str("[PAD", id, "]");
}

TokenTable make_table(const GgufVocabulary& vocabulary) {
  std::size_t bytes = 0;
  for (const std::string& token : vocabulary.tokens) bytes += token.size();
  TokenTable table;
  table.reserve(vocabulary.tokens.size(), bytes);
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!is_padding(vocabulary, id)) table.add(vocabulary.tokens[id], static_cast<TokenId>(id));
  }
  return table;
}

void add_written_merges(const GgufVocabulary& vocabulary, BpeVocabulary& model) {
  model.merges.reserve(vocabulary.merges.size());
  for (const std::string& merge : vocabulary.merges) {
    const std::string_view both = merge;
    // A token may begin with a space, but there is always one between two.
    const std::size_t space = both.find(' ', 1);
    if (space == std::string_view::npos) {
      fail("merge ", model.merges.size(), ": \"", merge,
           "\" is not two tokens with a space between them");
    }
    const auto left = model.tokens.find(both.substr(0, space));
    const auto right = model.tokens.find(both.substr(space + 1));
    const auto merged = model.tokens.find_joined(both.substr(0, space), both.substr(space + 1));
    if (!left || !right || !merged) {
      fail("merge ", model.merges.size(), ": \"", merge, "\" is of a token that is not there");
    }
    model.merges.add(*left, *right, *merged);
  }
}

// SentencePiece merges whatever makes a token, the highest score first. As a list of merges: every way to put
// a token together, in the order of the tokens' scores; as the tokenizer.json files of such models have it.
void add_scored_merges(const GgufVocabulary& vocabulary, BpeVocabulary& model) {
  constexpr std::size_t kLongest = 256;  // bytes of a token that merges make
  struct Merge {
    double score;
    TokenId merged, left, right;
  };
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view token = vocabulary.tokens[id];
    if (type_of(vocabulary, id) != GgufTokenType::normal || token.size() > kLongest) continue;
    // Of tokens with one text, the last is the one that is found.
    if (model.tokens.find(token) != static_cast<TokenId>(id)) continue;
    for (std::size_t at = 1; at < token.size(); ++at) {
      if ((static_cast<unsigned char>(token[at]) & 0xC0) == 0x80) continue;  // inside a character
      const auto left = model.tokens.find(token.substr(0, at));
      if (!left) continue;
      const auto right = model.tokens.find(token.substr(at));
      if (right) merges.push_back({vocabulary.scores[id], static_cast<TokenId>(id), *left, *right});
    }
  }
  std::ranges::sort(merges, [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, a.merged, a.left, a.right) <
           std::tuple(-b.score, b.merged, b.left, b.right);
  });
  model.merges.reserve(merges.size());
  for (const Merge& merge : merges) model.merges.add(merge.left, merge.right, merge.merged);
}

std::vector<AddedToken> added_tokens(const GgufVocabulary& vocabulary) {
  std::vector<AddedToken> added;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const GgufTokenType type = type_of(vocabulary, id);
    const bool special = type == GgufTokenType::control || type == GgufTokenType::unknown;
    if (!special && type != GgufTokenType::user_defined) continue;
    added.push_back({.content = vocabulary.tokens[id], .normalized = false, .special = special});
  }
  return added;
}

// Files write -1 where there is none.
bool has(const std::optional<std::int64_t>& id) {
  return id.has_value() && *id >= 0;
}

std::optional<std::string> token_text(const GgufVocabulary& vocabulary, const char* what,
                                      const std::optional<std::int64_t>& id) {
  if (!has(id)) return std::nullopt;
  if (static_cast<std::uint64_t>(*id) >= vocabulary.tokens.size()) {
    fail("tokenizer.ggml.", what, "_token_id ", *id, ": there are ", vocabulary.tokens.size(),
         " tokens");
  }
  return vocabulary.tokens[static_cast<std::size_t>(*id)];
}

void add_template(const GgufVocabulary& vocabulary, bool bos_by_default, TokenizerParts& parts) {
  PostProcessor::Template ends;
  if (has(vocabulary.bos_id) && vocabulary.add_bos.value_or(bos_by_default)) {
    ends.before.push_back(static_cast<TokenId>(*vocabulary.bos_id));
  }
  if (has(vocabulary.eos_id) && vocabulary.add_eos.value_or(false)) {
    ends.after.push_back(static_cast<TokenId>(*vocabulary.eos_id));
  }
  parts.post_processor.add(std::move(ends));
}

std::string sequence(const char* list, const std::vector<const char*>& steps) {
  std::string json = str(R"({"type": "Sequence", ")", list, R"(": [)");
  for (const char* step : steps) json += str(step == steps.front() ? "" : ", ", step);
  return json + "]}";
}

TokenizerParts byte_level_parts(const GgufVocabulary& vocabulary) {
  const GgufPre& pre = find_gguf_pre(vocabulary.pre);
  TokenizerParts parts;
  parts.vocabulary.tokens = make_table(vocabulary);
  parts.vocabulary.ignore_merges = pre.ignore_merges;
  add_written_merges(vocabulary, parts.vocabulary);
  parts.normalizer = parse_normalizer(pre.normalizer);
  parts.pre_tokenizer = parse_pre_tokenizer(sequence("pretokenizers", pre.steps));
  parts.decoder = parse_decoder(R"({"type": "ByteLevel"})");
  add_template(vocabulary, pre.add_bos, parts);
  return parts;
}

TokenizerParts sentencepiece_parts(const GgufVocabulary& vocabulary) {
  if (vocabulary.merges.empty() && vocabulary.scores.size() != vocabulary.tokens.size()) {
    fail("tokenizer.ggml.scores: ", vocabulary.scores.size(), " of ", vocabulary.tokens.size(),
         " tokens");
  }
  const bool prefix = vocabulary.add_space_prefix.value_or(true);
  const char* const spaces = R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})";
  TokenizerParts parts;
  BpeVocabulary& model = parts.vocabulary;
  model.tokens = make_table(vocabulary);
  model.byte_fallback = true;
  model.fuse_unk = true;
  model.unk_token = token_text(vocabulary, "unknown", vocabulary.unk_id);
  if (vocabulary.merges.empty()) {
    add_scored_merges(vocabulary, model);
  } else {
    add_written_merges(vocabulary, model);
  }
  parts.normalizer = parse_normalizer(
      prefix ? sequence("normalizers", {R"({"type": "Prepend", "prepend": "▁"})", spaces})
             : spaces);
  std::vector<const char*> decoding = {
      R"({"type": "Replace", "pattern": {"String": "▁"}, "content": " "})",
      R"({"type": "ByteFallback"})", R"({"type": "Fuse"})"};
  if (prefix) decoding.push_back(R"({"type": "Strip", "content": " ", "start": 1, "stop": 0})");
  parts.decoder = parse_decoder(sequence("decoders", decoding));
  add_template(vocabulary, true, parts);
  return parts;
}

// Nothing else in a tokenizer looks at it again.
void check(const GgufVocabulary& vocabulary) {
  if (vocabulary.model != "gpt2" && vocabulary.model != "llama") {
    fail("tokenizer.ggml.model \"", vocabulary.model,
         "\" is not supported; supported are gpt2, llama");
  }
  if (vocabulary.tokens.empty()) fail("tokenizer.ggml.tokens is missing or empty");
  if (!vocabulary.token_types.empty() &&
      vocabulary.token_types.size() != vocabulary.tokens.size()) {
    fail("tokenizer.ggml.token_type: ", vocabulary.token_types.size(), " of ",
         vocabulary.tokens.size(), " tokens");
  }
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    if (valid_utf8_prefix(token) != token.size()) {
      fail("tokenizer.ggml.tokens: token ", id, " is not UTF-8");
    }
  }
  for (std::size_t id = 0; id < vocabulary.scores.size(); ++id) {
    if (!std::isfinite(vocabulary.scores[id])) {
      fail("tokenizer.ggml.scores: that of token ", id, " is ", vocabulary.scores[id]);
    }
  }
}

}  // namespace

LoadedTokenizer make_tokenizer(const GgufVocabulary& vocabulary) {
  check(vocabulary);
  LoadedTokenizer loaded;
  loaded.config.bos_token = token_text(vocabulary, "bos", vocabulary.bos_id);
  loaded.config.eos_token = token_text(vocabulary, "eos", vocabulary.eos_id);
  loaded.config.unk_token = token_text(vocabulary, "unknown", vocabulary.unk_id);
  loaded.config.pad_token = token_text(vocabulary, "padding", vocabulary.pad_id);
  loaded.config.add_bos_token = vocabulary.add_bos;
  loaded.config.add_eos_token = vocabulary.add_eos;
  loaded.config.chat_template = vocabulary.chat_template;

  TokenizerParts parts =
      vocabulary.model == "gpt2" ? byte_level_parts(vocabulary) : sentencepiece_parts(vocabulary);
  parts.added.add(added_tokens(vocabulary), parts.vocabulary.tokens);
  loaded.tokenizer = std::make_unique<Tokenizer>(std::move(parts));
  return loaded;
}

}  // namespace nvllm::tokenizer
