// Compiles a pattern to a RegexProgram: a recursive-descent parser builds a tree, whose traversal
// emits instructions.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/regex/regex_class.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::tokenizer {
namespace {

using Op = RegexProgram::Op;
using Instruction = RegexProgram::Instruction;

constexpr int kMaxDepth = 100;               // of nested groups
constexpr int kMaxRepeat = 1000;             // in {n,m}
constexpr std::size_t kMaxProgram = 20'000;  // instructions, after copying repeated parts

struct Node {
  enum Kind { kEmpty, kSet, kAssert, kSequence, kChoice, kRepeat } kind = kEmpty;
  std::uint32_t set = 0;        // kSet, kAssert with a set
  Op op = Op::kMatch;           // kAssert
  int min = 0, max = 0;         // kRepeat; max -1: no limit
  bool lazy = false;            // kRepeat
  char32_t folded_literal = 0;  // kSet made of this letter under (?i)
  std::vector<Node> children = {};
};

class Parser {
 public:
  Parser(std::string_view pattern, RegexProgram& program) : in_(pattern), program_(program) {}

  Node parse() {
    Node node = choice(0);
    if (!in_.done()) in_.fail_at("an unmatched )");
    return node;
  }

 private:
  Node choice(int depth) {
    if (depth > kMaxDepth) in_.fail_at(str("more than ", kMaxDepth, " nested groups"));
    const bool ignore_case = ignore_case_;
    Node node{.kind = Node::kChoice};
    do node.children.push_back(sequence(depth));
    while (in_.accept("|"));
    ignore_case_ = ignore_case;  // (?i) extends to the end of its group
    if (node.children.size() == 1) return std::move(node.children.front());
    return node;
  }

  Node sequence(int depth) {
    Node node{.kind = Node::kSequence};
    while (!in_.done() && in_.peek() != '|' && in_.peek() != ')') {
      node.children.push_back(quantified(atom(depth)));
      const std::size_t count = node.children.size();
      if (count > 1) refuse_joint_folding(node.children[count - 2], node.children[count - 1]);
    }
    return node;
  }

  // Under (?i) some pairs of letters match a single character (ss: ß), which no tokenizer needs.
  void refuse_joint_folding(const Node& a, const Node& b) const {
    static constexpr std::array<const char*, 5> kJoint = {"ss", "ff", "fi", "fl", "st"};
    for (const char* pair : kJoint) {
      if (a.folded_literal == static_cast<char32_t>(pair[0]) &&
          b.folded_literal == static_cast<char32_t>(pair[1])) {
        in_.fail_at(str("\"", pair, "\" under (?i)"));
      }
    }
  }

  Node atom(int depth) {
    if (in_.accept("(")) return group(depth);
    if (in_.accept("^")) return {.kind = Node::kAssert, .op = Op::kLineStart};
    if (in_.accept("$")) return {.kind = Node::kAssert, .op = Op::kLineEnd};
    if (in_.accept("\\A")) return {.kind = Node::kAssert, .op = Op::kTextStart};
    if (in_.accept("\\z")) return {.kind = Node::kAssert, .op = Op::kTextEnd};
    if (in_.peek() == '*' || in_.peek() == '+' || in_.peek() == '?') {
      in_.fail_at("a quantifier with nothing to repeat");
    }
    const ParsedClass parsed = parse_class(in_, ignore_case_);
    return {
        .kind = Node::kSet, .set = add_set(parsed.set), .folded_literal = parsed.folded_literal};
  }

  Node group(int depth) {
    Node inner;
    if (in_.accept("?i:")) {
      const bool before = std::exchange(ignore_case_, true);
      inner = choice(depth + 1);
      ignore_case_ = before;
    } else if (in_.accept("?i)")) {
      ignore_case_ = true;
      return {};
    } else if (in_.accept("?=")) {
      inner = assertion(choice(depth + 1), Op::kAhead);
    } else if (in_.accept("?!")) {
      inner = assertion(choice(depth + 1), Op::kNotAhead);
    } else if (in_.accept("?<=")) {
      inner = assertion(choice(depth + 1), Op::kBehind);
    } else if (in_.accept("?<!")) {
      inner = assertion(choice(depth + 1), Op::kNotBehind);
    } else if (!in_.accept("?:") && !in_.done() && in_.peek() == '?') {
      in_.fail_at("a group (?... of an unknown kind");
    } else {
      inner = choice(depth + 1);
    }
    if (!in_.accept(")")) in_.fail_at("a ( without )");
    // A group of its own, so that what follows quantifies all of it.
    Node node{.kind = Node::kSequence};
    node.children.push_back(std::move(inner));
    return node;
  }

  Node assertion(Node inner, Op op) const {
    const Node* single = &inner;
    while (single->kind == Node::kSequence && single->children.size() == 1) {
      single = &single->children.front();
    }
    if (single->kind != Node::kSet) in_.fail_at("a look-around of more than one character");
    return {.kind = Node::kAssert, .set = single->set, .op = op};
  }

  Node quantified(Node node) {
    for (;;) {
      int min = 0, max = -1;
      bool interval = false;
      if (in_.accept("*")) {
      } else if (in_.accept("+")) {
        min = 1;
      } else if (in_.accept("?")) {
        max = 1;
      } else if (in_.accept_interval(min, max)) {
        interval = true;
        if (max > kMaxRepeat || min > kMaxRepeat) {
          in_.fail_at(str("more than ", kMaxRepeat, " repetitions"));
        }
        if (max >= 0 && max < min) in_.fail_at("{n,m} with n above m");
      } else {
        return node;
      }
      const bool lazy = in_.accept("?");
      // After an interval, + repeats the repetition instead.
      const bool possessive = !lazy && !interval && in_.accept("+");
      if (interval && lazy && max == min) in_.fail_at("{n}?");
      node = repeat(std::move(node), min, max, lazy, possessive);
    }
  }

  Node repeat(Node node, int min, int max, bool lazy, bool possessive) const {
    Node repeated{.kind = Node::kRepeat, .min = min, .max = max, .lazy = lazy};
    if (!possessive) {
      repeated.children.push_back(std::move(node));
      return repeated;
    }
    // X++ is X+(?!X), and X?+ is X|(?!X), if X is a single character.
    if (node.kind != Node::kSet) in_.fail_at("a possessive quantifier on more than one character");
    const Node not_ahead{.kind = Node::kAssert, .set = node.set, .op = Op::kNotAhead};
    Node result{.kind = max == 1 ? Node::kChoice : Node::kSequence};
    if (max == 1) {
      result.children = {std::move(node), not_ahead};
    } else {
      repeated.children.push_back(std::move(node));
      result.children = {std::move(repeated), not_ahead};
    }
    return result;
  }

  std::uint32_t add_set(CharSet set) {
    program_.sets.push_back(std::move(set));
    return static_cast<std::uint32_t>(program_.sets.size() - 1);
  }

  PatternReader in_;
  RegexProgram& program_;
  bool ignore_case_ = false;
};

class Emitter {
 public:
  explicit Emitter(RegexProgram& program) : program_(program) {}

  void emit(const Node& node) {
    if (++steps_ > kMaxProgram)
      fail_size();  // empty nodes add nothing, but could be repeated without bound
    switch (node.kind) {
      case Node::kEmpty: break;
      case Node::kSet: add({.op = Op::kSet, .x = node.set}); break;
      case Node::kAssert: add({.op = node.op, .x = node.set}); break;
      case Node::kSequence:
        for (const Node& child : node.children) emit(child);
        break;
      case Node::kChoice: emit_choice(node); break;
      case Node::kRepeat: emit_repeat(node); break;
    }
  }

  std::uint32_t add(Instruction instruction) {
    if (program_.code.size() >= kMaxProgram) fail_size();
    program_.code.push_back(instruction);
    return here() - 1;
  }

 private:
  std::uint32_t here() const { return static_cast<std::uint32_t>(program_.code.size()); }
  std::uint32_t add_split() { return add({.op = Op::kSplit, .mark = program_.marks++}); }
  void set_targets(std::uint32_t split, std::uint32_t inside, std::uint32_t after, bool lazy) {
    Instruction& instruction = program_.code[split];
    instruction.x = lazy ? after : inside;
    instruction.y = lazy ? inside : after;
  }

  void emit_choice(const Node& node) {
    std::vector<std::uint32_t> ends;
    for (std::size_t i = 0; i + 1 < node.children.size(); ++i) {
      const std::uint32_t split = add_split();
      emit(node.children[i]);
      ends.push_back(add({.op = Op::kJump}));
      set_targets(split, split + 1, here(), false);
    }
    emit(node.children.back());
    for (const std::uint32_t end : ends) program_.code[end].x = here();
  }

  void emit_repeat(const Node& node) {
    const Node& child = node.children.front();
    for (int i = 0; i < node.min; ++i) emit(child);
    if (node.max < 0) {
      const std::uint32_t split = add_split();
      emit(child);
      add({.op = Op::kJump, .x = split});
      set_targets(split, split + 1, here(), node.lazy);
      return;
    }
    std::vector<std::uint32_t> splits;
    for (int i = node.min; i < node.max; ++i) {
      splits.push_back(add_split());
      emit(child);
    }
    for (const std::uint32_t split : splits) set_targets(split, split + 1, here(), node.lazy);
  }

  [[noreturn]] static void fail_size() {
    fail("more than ", kMaxProgram, " instructions; repeat less");
  }

  RegexProgram& program_;
  std::size_t steps_ = 0;
};

}  // namespace

RegexProgram compile_regex(std::string_view pattern) {
  return with_context(str("regular expression \"", pattern, "\""), [&] {
    RegexProgram program;
    const Node root = Parser(pattern, program).parse();
    Emitter emitter(program);
    emitter.emit(root);
    emitter.add({.op = Op::kMatch});
    return program;
  });
}

RegexProgram literal_regex(std::string_view text) {
  RegexProgram program;
  for_each_char(text, [&](char32_t c, std::string_view) {
    CharSet set;
    set.add_range(c, c);
    set.finish();
    program.code.push_back({.op = Op::kSet, .x = static_cast<std::uint32_t>(program.sets.size())});
    program.sets.push_back(std::move(set));
  });
  program.code.push_back({.op = Op::kMatch});
  return program;
}

}  // namespace nvllm::tokenizer
