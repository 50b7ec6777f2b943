#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "tokenizer/loading/tokenizer_json.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 20;  // of Sequences in Sequences

// Parses, and gives errors of shape (a string where a number should be) the part's name.
template <typename Function>
auto with_json(std::string_view part, std::string_view text, Function&& function) {
  try {
    return std::forward<Function>(function)(parse_json(text));
  } catch (const Json::exception& error) {
    // "[json.exception.type_error.302] type must be string, but is null": the number helps nobody.
    const std::string_view what = error.what();
    const std::size_t id_end = what.find("] ");
    fail(part, ": ", id_end == std::string_view::npos ? what : what.substr(id_end + 2));
  }
}

const Json& member(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) fail("\"", key, "\" is missing in ", json_text(json).substr(0, 80));
  return *found;
}

std::string string_at(const Json& json, const char* key) {
  return member(json, key).get<std::string>();
}

bool bool_at(const Json& json, const char* key, bool otherwise) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? otherwise : found->get<bool>();
}

// Calls make(type, json) for the part, or for each of a Sequence's parts. null is no part.
template <typename Make>
void for_each_part(std::string_view what, const char* list, const Json& json, Make&& make,
                   int depth = 0) {
  if (json.is_null()) return;
  if (depth > kMaxDepth) fail(what, ": more than ", kMaxDepth, " nested Sequences");
  const std::string type = string_at(json, "type");
  if (type != "Sequence") return make(type, json);
  for (const Json& part : member(json, list)) for_each_part(what, list, part, make, depth + 1);
}

[[noreturn]] void fail_type(std::string_view what, std::string_view type, std::string_view known) {
  fail(what, " \"", type, "\" is not supported; supported are ", known);
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
  fail("behavior \"", name, "\" is not supported");
}

RegexSplit word_split(WordPattern pattern) {
  return {.program = compile_regex(pattern_text(pattern)), .fast = pattern};
}

RegexSplit parse_split(const Json& json) {
  RegexSplit split;
  const Json& pattern = member(json, "pattern");
  if (pattern.contains("String")) {
    split.program = literal_regex(string_at(pattern, "String"));
  } else {
    const std::string regex = string_at(pattern, "Regex");
    split.program = compile_regex(regex);
    split.fast = known_word_pattern(regex);
  }
  split.behavior = parse_behavior(member(json, "behavior"));
  split.invert = bool_at(json, "invert", false);
  return split;
}

// prepend_scheme, or its elder add_prefix_space.
PrependScheme parse_prepend_scheme(const Json& json) {
  if (!bool_at(json, "add_prefix_space", true)) return PrependScheme::kNever;
  const std::string name = json.value("prepend_scheme", "always");
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  fail("Metaspace prepend_scheme \"", name, "\" is not always, first or never");
}

std::string one_char_at(const Json& json, const char* key) {
  std::string text = string_at(json, key);
  if (text.empty() || utf8_size(text[0]) != text.size()) {
    fail("\"", key, "\" is \"", text, "\"; it must be one character");
  }
  return text;
}

void add_pre_tokenizer(PreTokenizer& out, const std::string& type, const Json& json) {
  if (type == "ByteLevel") {
    if (bool_at(json, "add_prefix_space", true)) out.add(PrefixSpace{});
    if (bool_at(json, "use_regex", true)) out.add(word_split(WordPattern::kGpt2));
    out.add(ToByteChars{});
  } else if (type == "Split") {
    out.add(parse_split(json));
  } else if (type == "Digits") {
    const bool individual = bool_at(json, "individual_digits", false);
    out.add(CharSplit{CharSplit::kNumber,
                      individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  } else if (type == "Punctuation") {
    out.add(CharSplit{CharSplit::kPunctuation, json.contains("behavior")
                                                   ? parse_behavior(json["behavior"])
                                                   : SplitBehavior::kIsolated});
  } else if (type == "Whitespace") {
    out.add(WhitespaceWords{});
  } else if (type == "WhitespaceSplit") {
    out.add(CharSplit{CharSplit::kWhiteSpace, SplitBehavior::kRemoved});
  } else if (type == "Metaspace") {
    out.add(Metaspace{one_char_at(json, "replacement"), parse_prepend_scheme(json),
                      bool_at(json, "split", true)});
  } else {
    fail_type(
        "pre_tokenizer", type,
        "ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace, Sequence");
  }
}

void add_normalizer(Normalizer& out, const std::string& type, const Json& json) {
  static constexpr std::array<std::pair<std::string_view, NormalForm>, 4> kForms = {
      {{"NFC", NormalForm::kNfc},
       {"NFD", NormalForm::kNfd},
       {"NFKC", NormalForm::kNfkc},
       {"NFKD", NormalForm::kNfkd}}};
  for (const auto& [name, form] : kForms) {
    if (type == name) return out.add(form);
  }
  if (type == "Lowercase") {
    out.add(Lowercase{});
  } else if (type == "StripAccents") {
    out.add(StripAccents{});
  } else if (type == "Prepend") {
    out.add(Prepend{string_at(json, "prepend")});
  } else if (type == "Strip") {
    out.add(StripSpace{bool_at(json, "strip_left", true), bool_at(json, "strip_right", true)});
  } else if (type == "Replace") {
    out.add(parse_replacement(json));
  } else {
    fail_type("normalizer", type,
              "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Prepend, Strip, Replace, Sequence");
  }
}

void add_decoder(Decoder& out, const std::string& type, const Json& json) {
  if (type == "ByteLevel") {
    out.add(FromByteChars{});
  } else if (type == "ByteFallback") {
    out.add(ByteFallback{});
  } else if (type == "Fuse") {
    out.add(Fuse{});
  } else if (type == "Strip") {
    out.add(StripChar{one_char_at(json, "content"), member(json, "start").get<std::size_t>(),
                      member(json, "stop").get<std::size_t>()});
  } else if (type == "Replace") {
    out.add(parse_replacement(json));
  } else if (type == "Metaspace") {
    out.add(FromMetaspace{one_char_at(json, "replacement"),
                          parse_prepend_scheme(json) != PrependScheme::kNever});
  } else {
    fail_type("decoder", type,
              "ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, Sequence");
  }
}

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

}  // namespace

Normalizer parse_normalizer(std::string_view text) {
  return with_json("normalizer", text, [](const Json& json) {
    Normalizer out;
    for_each_part("normalizer", "normalizers", json,
                  [&](const auto& type, const Json& part) { add_normalizer(out, type, part); });
    return out;
  });
}

PreTokenizer parse_pre_tokenizer(std::string_view text) {
  return with_json("pre_tokenizer", text, [](const Json& json) {
    PreTokenizer out;
    for_each_part("pre_tokenizer", "pretokenizers", json,
                  [&](const auto& type, const Json& part) { add_pre_tokenizer(out, type, part); });
    return out;
  });
}

PostProcessor parse_post_processor(std::string_view text) {
  return with_json("post_processor", text, [](const Json& json) {
    PostProcessor out;
    for_each_part("post_processor", "processors", json, [&](const auto& type, const Json& part) {
      if (type == "TemplateProcessing") {
        out.add(parse_template(part));
      } else if (type != "ByteLevel") {  // that one is about offsets, which are not computed here
        fail_type("post_processor", type, "TemplateProcessing, ByteLevel, Sequence");
      }
    });
    return out;
  });
}

Decoder parse_decoder(std::string_view text) {
  return with_json("decoder", text, [](const Json& json) {
    Decoder out;
    for_each_part("decoder", "decoders", json,
                  [&](const auto& type, const Json& part) { add_decoder(out, type, part); });
    return out;
  });
}

std::vector<AddedToken> parse_added_tokens(std::string_view text) {
  return with_json("added_tokens", text, [](const Json& json) {
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
