#include "tokenizer/loading/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/bounded_json.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/regular_file.h"
#include "tokenizer/loading/json_reader.h"
#include "tokenizer/loading/part_json.h"

namespace nvllm::tokenizer {
namespace {

// The largest supported files; those of models have up to 40 MB, and 2.
constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxTokenizerConfigBytes = std::uint64_t{64} << 20;

// Average file size per token with its merge; tables are reserved accordingly.
constexpr std::size_t kBytesPerToken = 64;

std::optional<std::string> read_optional_string(JsonReader& in) {
  if (in.peek() != 'n') return std::string(in.read_string());
  in.skip_value();
  return std::nullopt;
}

void read_vocabulary(JsonReader& in, TokenTable& tokens) {
  std::string_view token;
  in.begin_object();
  while (in.next_key(token)) {
    // read_uint32 leaves the key alone.
    const TokenId id = in.read_uint32();
    tokens.add(token, id);
  }
}

class MergeReader {
 public:
  explicit MergeReader(BpeVocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // Pairs of tokens, or (in older files) strings "left right".
  void read(JsonReader& in) {
    in.begin_array();
    while (in.next_item()) {
      if (in.peek() == '"') {
        read_joined(in);
      } else {
        read_pair(in);
      }
      add();
    }
  }

 private:
  void read_joined(JsonReader& in) {
    const std::string_view both = in.read_string();
    const std::size_t space = both.find(' ');
    if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos) {
      fail("merge ", number(), ": \"", shown_text(both),
           "\" is not two tokens with a space between them");
    }
    left_ = both.substr(0, space);
    right_ = both.substr(space + 1);
  }

  void read_pair(JsonReader& in) {
    in.begin_array();
    std::size_t count = 0;
    for (; in.next_item(); ++count) (count == 0 ? left_ : right_) = in.read_string();
    if (count != 2) fail("merge ", number(), ": a list of ", count, " tokens, not 2");
  }

  void add() {
    const TokenTable& tokens = vocabulary_.tokens;
    const auto left = tokens.find(left_), right = tokens.find(right_);
    const auto merged = find_merged();
    if (!left || !right || !merged) {
      const std::string& missing = !left ? left_ : !right ? right_ : left_.append(right_);
      fail("merge ", number(), ": \"", shown_text(missing), "\" is not in the vocabulary");
    }
    vocabulary_.merges.add(*left, *right, *merged);
    next_merged_ = *merged + 1;
  }

  // Merges usually yield consecutive tokens, so no search is needed.
  std::optional<TokenId> find_merged() const {
    const auto text = vocabulary_.tokens.text(next_merged_);
    if (text && text->size() == left_.size() + right_.size() && text->starts_with(left_) &&
        text->ends_with(right_)) {
      return next_merged_;
    }
    return vocabulary_.tokens.find_joined(left_, right_);
  }

  std::size_t number() const { return vocabulary_.merges.size(); }

  BpeVocabulary& vocabulary_;
  std::string left_, right_;
  TokenId next_merged_ = 0;
};

void refuse_affix(JsonReader& in, std::string_view key) {
  const std::optional<std::string> text = read_optional_string(in);
  if (text && !text->empty()) fail(key, " \"", shown_text(*text), "\" is not supported");
}

void refuse_dropout(JsonReader& in) {
  const std::string_view value = in.raw_value();
  if (value != "null" && value.find_first_of("123456789") != std::string_view::npos) {
    fail("dropout ", shown_text(value), " is not supported; encoding would be random");
  }
}

BpeVocabulary read_model(JsonReader& in, std::size_t file_size) {
  BpeVocabulary model;
  std::optional<std::string_view> merges;  // read last, whatever their order
  bool has_vocabulary = false;
  model.tokens.reserve(file_size / kBytesPerToken, file_size / 8);
  model.merges.reserve(file_size / kBytesPerToken);
  std::string_view key;
  in.begin_object();
  while (in.next_key(key)) {
    if (key == "type") {
      const std::string_view type = in.read_string();
      if (type != "BPE") fail("type \"", shown_text(type), "\" is not supported; supported is BPE");
    } else if (key == "vocab") {
      read_vocabulary(in, model.tokens);
      has_vocabulary = true;
    } else if (key == "merges") {
      if (has_vocabulary) {
        MergeReader(model).read(in);
      } else {
        merges = in.raw_value();
      }
    } else if (key == "unk_token") {
      model.unk_token = read_optional_string(in);
    } else if (key == "fuse_unk") {
      model.fuse_unk = in.read_bool();
    } else if (key == "byte_fallback") {
      model.byte_fallback = in.read_bool();
    } else if (key == "ignore_merges") {
      model.ignore_merges = in.read_bool();
    } else if (key == "continuing_subword_prefix" || key == "end_of_word_suffix") {
      refuse_affix(in, std::string(key));
    } else if (key == "dropout") {
      refuse_dropout(in);
    } else {
      in.skip_value();
    }
  }
  if (!has_vocabulary) fail("vocab is missing");
  if (merges) {
    JsonReader reader = JsonReader::inside(*merges);
    MergeReader(model).read(reader);
  }
  return model;
}

// Adds the template that transformers' LlamaTokenizerFast makes of tokenizer_config.json.
void add_llama_template(const TokenizerConfig& config, TokenizerParts& parts) {
  PostProcessor::Template ends;
  const auto add = [&](bool adds, const std::optional<std::string>& token, auto& ids) {
    if (!adds || !token) return;
    auto id = parts.added.find(*token);
    if (!id) id = parts.vocabulary.tokens.find(*token);
    if (id) ids.push_back(*id);
  };
  add(config.adds_bos, config.bos_token, ends.before);
  add(config.adds_eos, config.eos_token, ends.after);
  parts.post_processor.add(std::move(ends));
}

TokenizerParts read_parts(std::string_view json, const TokenizerConfig* config) {
  TokenizerParts parts;
  std::vector<AddedToken> added;
  bool has_model = false;
  JsonReader in(json);
  std::string_view key;
  in.begin_object();
  while (in.next_key(key)) {
    if (key == "model") {
      parts.vocabulary = with_context("model", [&] { return read_model(in, json.size()); });
      has_model = true;
    } else if (key == "added_tokens") {
      added = parse_added_tokens(in.raw_value());
    } else if (key == "normalizer") {
      parts.normalizer = parse_normalizer(in.raw_value());
    } else if (key == "pre_tokenizer") {
      parts.pre_tokenizer = parse_pre_tokenizer(in.raw_value());
    } else if (key == "post_processor") {
      parts.post_processor = parse_post_processor(in.raw_value());
    } else if (key == "decoder") {
      parts.decoder = parse_decoder(in.raw_value());
    } else {
      in.skip_value();
    }
  }
  in.finish();
  if (!has_model) fail("model is missing");
  parts.added.add(added, parts.vocabulary.tokens);
  if (config != nullptr) {
    parts.added.add(config->added_tokens, parts.vocabulary.tokens);
    if (parts.post_processor.empty()) add_llama_template(*config, parts);
  }
  return parts;
}

using Json = nlohmann::json;

// A token is written as a string, or as an object with its content.
std::optional<std::string> token_at(const Json& json, const char* key) {
  const Json token = json.value(key, Json());
  if (token.is_null()) return std::nullopt;
  return (token.is_object() ? token.at("content") : token).get<std::string>();
}

// A null counts as absent.
bool flag_at(const Json& json, const char* key, bool otherwise) {
  const Json flag = json.value(key, Json());
  return flag.is_null() ? otherwise : flag.get<bool>();
}

bool is_llama_tokenizer(const Json& json) {
  const Json name = json.value("tokenizer_class", Json());
  return name == "LlamaTokenizer" || name == "LlamaTokenizerFast";
}

std::vector<AddedToken> added_tokens(const Json& json) {
  const Json tokens = json.value("added_tokens_decoder", Json());
  std::vector<std::pair<unsigned long, Json>> by_id;
  for (const auto& [id, token] : tokens.items()) {
    if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos) {
      fail("added_tokens_decoder: \"", shown_text(id), "\" is not a token id");
    }
    by_id.emplace_back(std::stoul(id), token);
  }
  std::ranges::stable_sort(by_id, {}, &std::pair<unsigned long, Json>::first);
  Json list = Json::array();
  for (auto& [id, token] : by_id) list.push_back(std::move(token));
  return parse_added_tokens(json_text(list));
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const TokenizerConfig* config) {
  return std::make_unique<Tokenizer>(read_parts(json, config));
}

LoadedTokenizer load_tokenizer(const std::filesystem::path& folder) {
  LoadedTokenizer loaded;
  const std::filesystem::path path = folder / "tokenizer.json";
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  if (auto text = read_regular_file_if_there(config_path.string(), kMaxTokenizerConfigBytes)) {
    loaded.config =
        with_context(config_path.string(), [&] { return parse_tokenizer_config(*text); });
    loaded.config_json = std::move(*text);
  }
  const auto text = read_regular_file_if_there(path.string(), kMaxTokenizerBytes);
  if (!text) fail(path.string(), ": there is no such file; pass a folder with a tokenizer.json");
  loaded.tokenizer =
      with_context(path.string(), [&] { return parse_tokenizer(*text, &loaded.config); });
  return loaded;
}

TokenizerConfig parse_tokenizer_config(std::string_view text) {
  return with_part_json("", text, [](const Json& json) -> TokenizerConfig {
    if (!json.is_object()) fail("it is not an object");
    const bool llama = is_llama_tokenizer(json);
    return {.bos_token = token_at(json, "bos_token"),
            .eos_token = token_at(json, "eos_token"),
            .pad_token = token_at(json, "pad_token"),
            .unk_token = token_at(json, "unk_token"),
            .adds_bos = llama && flag_at(json, "add_bos_token", true),
            .adds_eos = llama && flag_at(json, "add_eos_token", false),
            .added_tokens = added_tokens(json)};
  });
}

}  // namespace nvllm::tokenizer
