#include "tokenizer/regex/regex.h"

#include <algorithm>

#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {

using Op = RegexProgram::Op;

RegexMatcher::RegexMatcher(const RegexProgram& program, std::string_view text)
    : program_(program), text_(text), words_((program.marks + 63) / 64) {}

std::optional<TextSpan> RegexMatcher::next(std::size_t from) {
  while (from <= text_.size()) {
    const std::size_t end = match_at(from);
    if (end != kNoMatch && !(end == from && last_end_ == from)) {
      last_end_ = end;
      return TextSpan{from, end};
    }
    if (from == text_.size()) break;
    from += utf8_size(text_[from]);
  }
  return std::nullopt;
}

std::size_t RegexMatcher::match_at(std::size_t start) {
  const std::size_t end = run(start);
  if (end != kNoMatch) forget_marks(end);
  return end;
}

bool RegexMatcher::first_visit(std::uint32_t mark, std::size_t at) {
  const std::size_t word = (at - marks_base_) * words_ + mark / 64;
  if (word >= marks_.size()) marks_.resize((at - marks_base_ + 1) * words_);
  const std::uint64_t bit = std::uint64_t{1} << (mark % 64);
  if ((marks_[word] & bit) != 0) return false;
  marks_[word] |= bit;
  return true;
}

void RegexMatcher::forget_marks(std::size_t end) {
  if (words_ == 0 || end < marks_base_) return;
  const std::size_t used = (end - marks_base_) * words_;  // words of positions before the end
  if (used >= marks_.size()) {
    marks_.clear();
    marks_base_ = end;
    return;
  }
  // Points at the end of a match belong to the successful path; those after it have failed
  // permanently.
  const auto at = [&](std::size_t word) {
    return marks_.begin() + static_cast<std::ptrdiff_t>(word);
  };
  std::fill(at(used), at(used + words_), 0);
  if (used > marks_.size() / 2) {
    marks_.erase(marks_.begin(), at(used));
    marks_base_ = end;
  }
}

bool RegexMatcher::assertion_holds(const RegexProgram::Instruction& instruction,
                                   std::size_t at) const {
  const auto is_in = [&](std::size_t position) {
    return program_.sets[instruction.x].contains(decode_utf8(text_.data() + position).c);
  };
  switch (instruction.op) {
    case Op::kAhead: return at < text_.size() && is_in(at);
    case Op::kNotAhead: return at == text_.size() || !is_in(at);
    case Op::kBehind: return at > 0 && is_in(previous_char(text_, at));
    case Op::kNotBehind: return at == 0 || !is_in(previous_char(text_, at));
    case Op::kLineStart: return at == 0 || (text_[at - 1] == '\n' && at < text_.size());
    case Op::kLineEnd: return at == text_.size() || text_[at] == '\n';
    case Op::kTextStart: return at == 0;
    case Op::kTextEnd: return at == text_.size();
    default: return false;
  }
}

std::size_t RegexMatcher::run(std::size_t start) {
  pending_.clear();
  pending_.push_back({0, start});
  while (!pending_.empty()) {
    auto [pc, at] = pending_.back();
    pending_.pop_back();
    for (bool alive = true; alive;) {
      const RegexProgram::Instruction& instruction = program_.code[pc];
      switch (instruction.op) {
        case Op::kSet: {
          if (at == text_.size()) {
            alive = false;
            break;
          }
          const auto byte = static_cast<unsigned char>(text_[at]);
          const CharSet& set = program_.sets[instruction.x];
          if (byte < 0x80) {
            alive = set.contains_ascii(byte);
            ++at;
          } else {
            const DecodedChar next = decode_utf8(text_.data() + at);
            alive = set.contains(next.c);
            at += next.size;
          }
          ++pc;
          break;
        }
        case Op::kSplit:
          alive = first_visit(instruction.mark, at);
          if (alive) pending_.push_back({instruction.y, at});
          pc = instruction.x;
          break;
        case Op::kJump: pc = instruction.x; break;
        case Op::kMatch: return at;
        default: alive = assertion_holds(instruction, at); ++pc;
      }
    }
  }
  return kNoMatch;
}

}  // namespace nvllm::tokenizer
