#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "tokenizer/loading/part_json.h"
#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 20;  // of nested Sequences

const Json& member(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) fail("\"", key, "\" is missing in ", shown_text(json_text(json), 80));
  return *found;
}

std::string string_at(const Json& json, const char* key) {
  return member(json, key).get<std::string>();
}

bool bool_at(const Json& json, const char* key, bool otherwise) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? otherwise : found->get<bool>();
}

// A type in tokenizer.json, and a function that adds a part of this type.
template <typename Component>
struct PartType {
  std::string_view name;
  void (*add)(Component& out, const Json& json);
};

// Adds a part, or each of a Sequence's parts; null adds nothing. `list`: the key of a Sequence's
// parts.
template <typename Component>
void add_parts(Component& out, std::string_view what, const char* list, const Json& json,
               std::span<const PartType<Component>> types, int depth = 0) {
  if (json.is_null()) return;
  if (depth > kMaxDepth) fail(what, ": more than ", kMaxDepth, " nested Sequences");
  const std::string name = string_at(json, "type");
  if (name == "Sequence") {
    for (const Json& part : member(json, list)) {
      add_parts(out, what, list, part, types, depth + 1);
    }
    return;
  }
  std::string known;
  for (const PartType<Component>& type : types) {
    if (name == type.name) return type.add(out, json);
    known.append(type.name).append(", ");
  }
  fail(what, " \"", shown_text(name), "\" is not supported; supported are ", known, "Sequence");
}

template <typename Component, std::size_t n>
Component parse_component(std::string_view what, const char* list, std::string_view text,
                          const PartType<Component> (&types)[n]) {
  return with_part_json(str(what, ": "), text, [&](const Json& json) {
    Component out;
    add_parts(out, what, list, json, std::span<const PartType<Component>>(types));
    return out;
  });
}

Replacement parse_replacement(const Json& json) {
  const Json& pattern = member(json, "pattern");
  const std::string content = string_at(json, "content");
  if (pattern.contains("String"))
    return Replacement::of_literal(string_at(pattern, "String"), content);
  return Replacement::of_regex(string_at(pattern, "Regex"), content);
}

SplitBehavior parse_behavior(const Json& json) {
  static constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kNames = {{
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  const std::string name = json.get<std::string>();
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  fail("behavior \"", shown_text(name), "\" is not supported");
}

RegexSplit parse_split(const Json& json) {
  RegexSplit split;
  const Json& pattern = member(json, "pattern");
  if (pattern.contains("String")) {
    split.program = literal_regex(string_at(pattern, "String"));
  } else {
    split = word_split(string_at(pattern, "Regex"));
  }
  split.behavior = parse_behavior(member(json, "behavior"));
  split.invert = bool_at(json, "invert", false);
  return split;
}

// prepend_scheme, or its predecessor add_prefix_space.
PrependScheme parse_prepend_scheme(const Json& json) {
  if (!bool_at(json, "add_prefix_space", true)) return PrependScheme::kNever;
  const std::string name = json.value("prepend_scheme", "always");
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  fail("Metaspace prepend_scheme \"", shown_text(name), "\" is not always, first or never");
}

std::string one_char_at(const Json& json, const char* key) {
  std::string text = string_at(json, key);
  if (text.empty() || utf8_size(text[0]) != text.size()) {
    fail("\"", key, "\" is \"", shown_text(text), "\"; it must be one character");
  }
  return text;
}

constexpr PartType<PreTokenizer> kPreTokenizers[] = {
    {"ByteLevel",
     [](PreTokenizer& out, const Json& json) {
       if (bool_at(json, "add_prefix_space", true)) out.add(PrefixSpace{});
       if (bool_at(json, "use_regex", true)) out.add(word_split(pattern_text(WordPattern::kGpt2)));
       out.add(ToByteChars{});
     }},
    {"Split", [](PreTokenizer& out, const Json& json) { out.add(parse_split(json)); }},
    {"Digits",
     [](PreTokenizer& out, const Json& json) {
       const bool individual = bool_at(json, "individual_digits", false);
       out.add(CharSplit{CharSplit::kNumber,
                         individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
     }},
    {"Punctuation",
     [](PreTokenizer& out, const Json& json) {
       out.add(CharSplit{CharSplit::kPunctuation, json.contains("behavior")
                                                      ? parse_behavior(json["behavior"])
                                                      : SplitBehavior::kIsolated});
     }},
    {"Whitespace", [](PreTokenizer& out, const Json&) { out.add(WhitespaceWords{}); }},
    {"WhitespaceSplit",
     [](PreTokenizer& out, const Json&) {
       out.add(CharSplit{CharSplit::kWhiteSpace, SplitBehavior::kRemoved});
     }},
    {"Metaspace",
     [](PreTokenizer& out, const Json& json) {
       out.add(Metaspace{one_char_at(json, "replacement"), parse_prepend_scheme(json),
                         bool_at(json, "split", true)});
     }},
};

constexpr PartType<Normalizer> kNormalizers[] = {
    {"NFC", [](Normalizer& out, const Json&) { out.add(NormalForm::kNfc); }},
    {"NFD", [](Normalizer& out, const Json&) { out.add(NormalForm::kNfd); }},
    {"NFKC", [](Normalizer& out, const Json&) { out.add(NormalForm::kNfkc); }},
    {"NFKD", [](Normalizer& out, const Json&) { out.add(NormalForm::kNfkd); }},
    {"Lowercase", [](Normalizer& out, const Json&) { out.add(Lowercase{}); }},
    {"StripAccents", [](Normalizer& out, const Json&) { out.add(StripAccents{}); }},
    {"Prepend",
     [](Normalizer& out, const Json& json) { out.add(Prepend{string_at(json, "prepend")}); }},
    {"Strip",
     [](Normalizer& out, const Json& json) {
       out.add(StripSpace{bool_at(json, "strip_left", true), bool_at(json, "strip_right", true)});
     }},
    {"Replace", [](Normalizer& out, const Json& json) { out.add(parse_replacement(json)); }},
};

constexpr PartType<Decoder> kDecoders[] = {
    {"ByteLevel", [](Decoder& out, const Json&) { out.add(FromByteChars{}); }},
    {"ByteFallback", [](Decoder& out, const Json&) { out.add(ByteFallback{}); }},
    {"Fuse", [](Decoder& out, const Json&) { out.add(Fuse{}); }},
    {"Strip",
     [](Decoder& out, const Json& json) {
       out.add(StripChar{one_char_at(json, "content"), member(json, "start").get<std::size_t>(),
                         member(json, "stop").get<std::size_t>()});
     }},
    {"Replace", [](Decoder& out, const Json& json) { out.add(parse_replacement(json)); }},
    {"Metaspace",
     [](Decoder& out, const Json& json) {
       out.add(FromMetaspace{one_char_at(json, "replacement"),
                             parse_prepend_scheme(json) != PrependScheme::kNever});
     }},
};

PostProcessor::Template parse_template(const Json& json) {
  PostProcessor::Template result;
  bool seen_text = false;
  for (const Json& item : member(json, "single")) {
    if (item.contains("Sequence")) {
      if (std::exchange(seen_text, true)) fail("TemplateProcessing: \"single\" has two sequences");
      continue;
    }
    const std::string name = string_at(member(item, "SpecialToken"), "id");
    const Json& ids = member(member(member(json, "special_tokens"), name.c_str()), "ids");
    auto& side = seen_text ? result.after : result.before;
    for (const Json& id : ids) side.push_back(id.get<TokenId>());
  }
  if (!seen_text) fail("TemplateProcessing: \"single\" has no sequence");
  return result;
}

constexpr PartType<PostProcessor> kPostProcessors[] = {
    {"TemplateProcessing",
     [](PostProcessor& out, const Json& json) { out.add(parse_template(json)); }},
    // This one only affects offsets, which are not computed here.
    {"ByteLevel", [](PostProcessor&, const Json&) {}},
};

}  // namespace

Normalizer parse_normalizer(std::string_view text) {
  return parse_component("normalizer", "normalizers", text, kNormalizers);
}

PreTokenizer parse_pre_tokenizer(std::string_view text) {
  return parse_component("pre_tokenizer", "pretokenizers", text, kPreTokenizers);
}

PostProcessor parse_post_processor(std::string_view text) {
  return parse_component("post_processor", "processors", text, kPostProcessors);
}

Decoder parse_decoder(std::string_view text) {
  return parse_component("decoder", "decoders", text, kDecoders);
}

std::vector<AddedToken> parse_added_tokens(std::string_view text) {
  return with_part_json("added_tokens: ", text, [](const Json& json) {
    std::vector<AddedToken> tokens;
    if (json.is_null()) return tokens;
    for (const Json& item : json) {
      const bool special = bool_at(item, "special", false);
      tokens.push_back({.content = string_at(item, "content"),
                        .single_word = bool_at(item, "single_word", false),
                        .lstrip = bool_at(item, "lstrip", false),
                        .rstrip = bool_at(item, "rstrip", false),
                        .normalized = bool_at(item, "normalized", !special),
                        .special = special});
    }
    return tokens;
  });
}

}  // namespace nvllm::tokenizer
