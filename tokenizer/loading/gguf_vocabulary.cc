#include "tokenizer/loading/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/bounded_json.h"
#include "base/error.h"
#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

// Regular expressions with which byte-level tokenizers split text into words. Those of GPT-2, Qwen
// and Llama 3 are pattern_text() of a WordPattern.
constexpr std::string_view kTekken =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)re"
    R"re(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)re"
    R"re(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
// Qwen3.5's, in which marks belong to words.
constexpr std::string_view kQwen35 =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})re"
    R"re(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
// GPT-4o's, and gpt-oss'.
constexpr std::string_view kO200k =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)re"
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)?)re"
    R"re(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)re"
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)?)re"
    R"re(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kDeepSeekNumbers = R"re(\p{N}{1,3})re";
constexpr std::string_view kDeepSeekIdeographs =
    R"re([\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+)re";
constexpr std::string_view kDeepSeekWords =
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)re"
    R"re(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
// DeepSeek's before version 3.
constexpr std::string_view kLineBreaks = R"re([\r\n])re";
constexpr std::string_view kCoderWords = R"re(\s?\p{L}+)re";
constexpr std::string_view kCoderPunctuation = R"re(\s?\p{P}+)re";
constexpr std::string_view kOldIdeographs = R"re([\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+)re";
// Letters with case, in some version of Unicode.
constexpr std::string_view kLlmWords =
    R"re(\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293)re"
    R"re(\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c)re"
    R"re(\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5)re"
    R"re(\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77)re"
    R"re(\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57)re"
    R"re(\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6)re"
    R"re(-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102)re"
    R"re(\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134)re"
    R"re(\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb)re"
    R"re(-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-)re"
    R"re(\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a)re"
    "\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2"
    "\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]+";
constexpr std::string_view kLlmPunctuation =
    R"re(\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+)re";
constexpr std::string_view kSpacesAtEnd = R"re(\s+$)re";

// tokenizer.ggml.model of Gemma 4: merges of characters, with byte fallback.
constexpr std::string_view kGemma4 = "gemma4";

// The meaning of tokenizer.ggml.pre: how the byte-level tokenizers of a family split text into
// words.
struct GgufPreTokenizer {
  std::vector<const char*> names;  // of the family, in files
  // Text is split at each pattern in order: words are its matches, and the text between them.
  std::vector<std::string_view> patterns;
  bool digits_first = false, digits_last = false;  // cut single digits before or after all patterns
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // if the file does not specify it
};

const std::vector<GgufPreTokenizer>& known_pre_tokenizers() {
  static const std::vector<GgufPreTokenizer> known = {
      {.names = {"gpt-2", "gpt2"}, .patterns = {pattern_text(WordPattern::kGpt2)}},
      {.names = {"smollm"}, .patterns = {pattern_text(WordPattern::kGpt2)}, .digits_first = true},
      {.names = {"qwen2", "deepseek-r1-qwen"},
       .patterns = {pattern_text(WordPattern::kOneDigit)},
       .nfc = true},
      {.names = {"qwen35"}, .patterns = {kQwen35}, .nfc = true},
      {.names = {"llama-bpe", "llama3", "llama-v3"},
       .patterns = {pattern_text(WordPattern::kThreeDigits)},
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"tekken"}, .patterns = {kTekken}, .ignore_merges = true, .add_bos = true},
      {.names = {"gpt-4o"}, .patterns = {kO200k}},
      {.names = {"deepseek-v3"},
       .patterns = {kDeepSeekNumbers, kDeepSeekIdeographs, kDeepSeekWords}},
      {.names = {"deepseek-llm"},
       .patterns = {kLineBreaks, kLlmWords, kLlmPunctuation, kSpacesAtEnd, kOldIdeographs},
       .digits_last = true},
      {.names = {"deepseek-coder"},
       .patterns = {kLineBreaks, kCoderWords, kCoderPunctuation, kOldIdeographs},
       .digits_last = true},
  };
  return known;
}

// Throws an Error that lists the known names if this one is unknown or missing.
const GgufPreTokenizer& find_pre_tokenizer(const std::optional<std::string>& name) {
  std::string names;
  for (const GgufPreTokenizer& pre : known_pre_tokenizers()) {
    for (const char* known : pre.names) {
      if (name == known) return pre;
      names += str(names.empty() ? "" : ", ", known);
    }
  }
  if (!name) {
    fail("tokenizer.ggml.pre is missing, so how text is cut into words is not known; ",
         "supported are ", names);
  }
  fail("tokenizer.ggml.pre \"", shown_text(*name), "\" is not supported; supported are ", names);
}

GgufTokenType type_of(const GgufVocabulary& vocabulary, std::size_t id) {
  return vocabulary.token_types.empty() ? GgufTokenType::normal
                                        : GgufTokenType{vocabulary.token_types[id]};
}

// Rows of the embedding without a token are filled with these.
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
    // A token may start with a space, but exactly one separates two tokens.
    const std::size_t space = both.find(' ', 1);
    if (space == std::string_view::npos) {
      fail("merge ", model.merges.size(), ": \"", shown_text(merge),
           "\" is not two tokens with a space between them");
    }
    const auto left = model.tokens.find(both.substr(0, space));
    const auto right = model.tokens.find(both.substr(space + 1));
    const auto merged = model.tokens.find_joined(both.substr(0, space), both.substr(space + 1));
    if (!left || !right || !merged) {
      fail("merge ", model.merges.size(), ": \"", shown_text(merge),
           "\" is of a token that is not there");
    }
    model.merges.add(*left, *right, *merged);
  }
}

// SentencePiece merges any pair that forms a token, the highest score first. This is converted to a
// list of merges: every way to form a token, in the order of the tokens' scores, as in the
// tokenizer.json files of such models.
void add_scored_merges(const GgufVocabulary& vocabulary, BpeVocabulary& model) {
  constexpr std::size_t kMaxBytes = 256;  // bytes of a token that merges make
  struct Merge {
    double score;
    TokenId merged, left, right;
  };
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view token = vocabulary.tokens[id];
    if (type_of(vocabulary, id) != GgufTokenType::normal || token.size() > kMaxBytes) continue;
    // If tokens have equal texts, lookup finds the last one.
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

// Tokens of Gemma 4 that are runs of newlines: no merge yields them, and files do not mark them as
// matched in text.
bool is_newlines(const GgufVocabulary& vocabulary, std::size_t id) {
  const std::string& token = vocabulary.tokens[id];
  return vocabulary.model == kGemma4 && !token.empty() &&
         token.find_first_not_of('\n') == std::string::npos;
}

std::vector<AddedToken> added_tokens(const GgufVocabulary& vocabulary) {
  std::vector<AddedToken> added;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const GgufTokenType type = type_of(vocabulary, id);
    const bool special = type == GgufTokenType::control || type == GgufTokenType::unknown;
    const bool whole = type == GgufTokenType::user_defined || is_newlines(vocabulary, id);
    if (!special && !whole) continue;
    added.push_back({.content = vocabulary.tokens[id], .normalized = false, .special = special});
  }
  return added;
}

// Files contain -1 if there is no such token.
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

void add_template(const GgufVocabulary& vocabulary, bool add_bos, TokenizerParts& parts) {
  PostProcessor::Template ends;
  if (has(vocabulary.bos_id) && add_bos) {
    ends.before.push_back(static_cast<TokenId>(*vocabulary.bos_id));
  }
  if (has(vocabulary.eos_id) && vocabulary.add_eos.value_or(false)) {
    ends.after.push_back(static_cast<TokenId>(*vocabulary.eos_id));
  }
  parts.post_processor.add(std::move(ends));
}

TokenizerParts byte_level_parts(const GgufVocabulary& vocabulary) {
  const GgufPreTokenizer& pre = find_pre_tokenizer(vocabulary.pre);
  TokenizerParts parts;
  parts.vocabulary.tokens = make_table(vocabulary);
  parts.vocabulary.ignore_merges = pre.ignore_merges;
  add_written_merges(vocabulary, parts.vocabulary);
  if (pre.nfc) parts.normalizer.add(NormalForm::kNfc);
  constexpr CharSplit kDigits{CharSplit::kNumber, SplitBehavior::kIsolated};
  if (pre.digits_first) parts.pre_tokenizer.add(kDigits);
  for (const std::string_view regex : pre.patterns) parts.pre_tokenizer.add(word_split(regex));
  if (pre.digits_last) parts.pre_tokenizer.add(kDigits);
  parts.pre_tokenizer.add(ToByteChars{});
  parts.decoder.add(FromByteChars{});
  add_template(vocabulary, vocabulary.add_bos.value_or(pre.add_bos), parts);
  return parts;
}

TokenizerParts sentencepiece_parts(const GgufVocabulary& vocabulary) {
  if (vocabulary.model == kGemma4 && vocabulary.merges.empty()) {
    fail("tokenizer.ggml.merges is missing or empty");
  }
  if (vocabulary.merges.empty() && vocabulary.scores.size() != vocabulary.tokens.size()) {
    fail("tokenizer.ggml.scores: ", vocabulary.scores.size(), " of ", vocabulary.tokens.size(),
         " tokens");
  }
  const bool gemma4 = vocabulary.model == kGemma4;
  const bool prefix = vocabulary.add_space_prefix.value_or(!gemma4);
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
  if (prefix) parts.normalizer.add(Prepend{"▁"});
  parts.normalizer.add(Replacement::of_literal(" ", "▁"));
  parts.decoder.add(Replacement::of_literal("▁", " "));
  parts.decoder.add(ByteFallback{});
  parts.decoder.add(Fuse{});
  if (prefix) parts.decoder.add(StripChar{.c = " ", .start = 1, .stop = 0});
  // Some files of Gemma 4 wrongly specify that there is no BOS.
  add_template(vocabulary, gemma4 || vocabulary.add_bos.value_or(true), parts);
  return parts;
}

// Checks the consistency of the parts, which the tokenizer does not check again.
void check(const GgufVocabulary& vocabulary) {
  if (vocabulary.model != "gpt2" && vocabulary.model != "llama" && vocabulary.model != kGemma4) {
    fail("tokenizer.ggml.model \"", shown_text(vocabulary.model),
         "\" is not supported; supported are gpt2, llama, gemma4");
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

  TokenizerParts parts =
      vocabulary.model == "gpt2" ? byte_level_parts(vocabulary) : sentencepiece_parts(vocabulary);
  parts.added.add(added_tokens(vocabulary), parts.vocabulary.tokens);
  loaded.tokenizer = std::make_unique<Tokenizer>(std::move(parts));
  return loaded;
}

}  // namespace nvllm::tokenizer
