#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  const auto word_at = [&](std::size_t at) {
    return char_record(decode_utf8(text.data() + at).c).has(kRustWord);
  };
  return (begin == 0 || !word_at(previous_char(text, begin))) &&
         (end == text.size() || !word_at(end));
}

}  // namespace

const std::uint32_t* TokenFinder::child(std::uint32_t node, char byte) const {
  for (const auto& [label, target] : nodes_[node].children) {
    if (label == byte) return &target;
  }
  return nullptr;
}

void TokenFinder::add(std::string_view text, std::size_t value) {
  if (text.empty()) return;
  first_bytes_.set(static_cast<unsigned char>(text.front()));
  std::uint32_t node = 0;
  for (const char byte : text) {
    if (const std::uint32_t* next = child(node, byte)) {
      node = *next;
      continue;
    }
    const auto created = static_cast<std::uint32_t>(nodes_.size());
    nodes_[node].children.emplace_back(byte, created);
    nodes_.emplace_back();
    node = created;
  }
  if (nodes_[node].value == kNone) nodes_[node].value = value;  // the first of equal ones is used
}

std::optional<TokenFinder::Match> TokenFinder::next(std::string_view text, std::size_t from,
                                                    const Accepts& accepts) const {
  if (empty()) return std::nullopt;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!first_bytes_.test(static_cast<unsigned char>(text[begin]))) continue;
    std::optional<Match> best;
    std::uint32_t node = 0;
    for (std::size_t at = begin; at < text.size();) {
      const std::uint32_t* next = child(node, text[at]);
      if (next == nullptr) break;
      node = *next;
      ++at;
      if (nodes_[node].value == kNone) continue;
      const Match match{begin, at, nodes_[node].value};
      if (accepts(match)) best = match;
    }
    if (best) return best;
  }
  return std::nullopt;
}

std::optional<TokenId> AddedTokens::find(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* AddedTokens::text(TokenId id) const {
  const auto found = texts_.find(id);
  return found == texts_.end() ? nullptr : &found->second;
}

bool AddedTokens::is_special(TokenId id) const {
  const std::string* found = text(id);
  return found != nullptr && special_.contains(*found);
}

void AddedTokens::add(const std::vector<AddedToken>& tokens, const TokenTable& vocabulary) {
  for (const AddedToken& token : tokens) {
    if (token.special && !token.content.empty() && special_.insert(token.content).second) {
      in_order_.push_back(token);
    }
  }
  TokenId next_id = static_cast<TokenId>(vocabulary.size());
  for (const auto& [content, id] : ids_) next_id = std::max(next_id, id + 1);
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    std::optional<TokenId> id = find(token.content);
    if (!id) id = vocabulary.find(token.content);
    if (!id) id = next_id;
    if (const auto before = by_id_.find(*id); before != by_id_.end() && before->second == token) {
      continue;
    }
    next_id = std::max(next_id, *id + 1);
    ids_[token.content] = *id;
    by_id_[*id] = token;
    if (!special_.contains(token.content)) classic_.push_back(token);
  }
}

void AddedTokens::build(const Normalizer& normalizer) {
  in_order_.insert(in_order_.end(), classic_.begin(), classic_.end());
  for (const AddedToken& token : in_order_) {
    const TokenId id = *find(token.content);
    if (token.normalized) {
      normalizes_special_tokens_ = normalizes_special_tokens_ || special_.contains(token.content);
      normalized_.add(normalizer.apply(token.content).text, id);
    } else {
      raw_.add(token.content, id);
    }
  }
  for (const auto& [id, token] : by_id_) {
    texts_[id] = token.normalized ? normalizer.apply(token.content).text : token.content;
  }
}

void AddedTokens::split(const TokenFinder& finder, std::string_view text, const Marks& marks,
                        const PartSink& sink) const {
  const TokenFinder::Accepts accepts = [&](const TokenFinder::Match& match) {
    return !marks.any_in(match.begin, match.end) ||
           !special_.contains(by_id_.at(static_cast<TokenId>(match.value)).content);
  };
  std::size_t done = 0, from = 0;
  while (const auto match = finder.next(text, from, accepts)) {
    from = match->end;
    const auto id = static_cast<TokenId>(match->value);
    const AddedToken& token = by_id_.at(id);
    std::size_t begin = match->begin, end = match->end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    // The previous token may already include the spaces.
    if (token.lstrip) begin = std::max(skip_white_space_before(text, begin), done);
    if (token.rstrip) end = skip_white_space(text, end);
    if (done < begin) sink({done, begin, std::nullopt});
    sink({begin, end, id});
    done = end;
  }
  if (done < text.size()) sink({done, text.size(), std::nullopt});
}

}  // namespace nvllm::tokenizer
