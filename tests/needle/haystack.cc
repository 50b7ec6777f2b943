#include "tests/needle/haystack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/math.h"

namespace nvllm::needle {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr int kTries = 1000;
// Filler before the first line: without it, scores of lines too close to [bos] would be added to
// its own score.
constexpr std::int64_t kLead = 15;
constexpr std::int64_t kQuestion = 3;  // tokens
constexpr double kHopDistance = 0.37;  // in depth, modulo 1

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(split_mix(seed)) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }
  double fraction() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t next() { return split_mix(state_ += kSplitMixStep); }
  std::uint64_t state_;
};

using Key = std::array<std::int32_t, 2>;

// Creates lines in which no sequence of three tokens that leads to a fourth one repeats.
class LineMaker {
 public:
  LineMaker(const NeedleModel& model, Random& random) : model_(model), random_(random) {}

  Key new_key() {
    return attempt<Key>([&](Key& key) {
      key = {symbol(), symbol()};
      return keys_.insert(number_of(0, key[0], key[1])).second;
    });
  }

  // [line] key value [end], with a value of value_tokens symbols.
  Tokens line(const Key& key, int value_tokens) {
    return attempt<Tokens>([&](Tokens& line) {
      line = {NeedleModel::kLine, key[0], key[1]};
      for (int i = 0; i < value_tokens; ++i) line.push_back(symbol());
      line.push_back(NeedleModel::kEnd);
      return take_threes(line);
    });
  }

  Tokens reference(const Key& key, const Key& to) {
    return {NeedleModel::kLine, key[0], key[1], NeedleModel::kRefer, to[0], to[1],
            NeedleModel::kEnd};
  }

 private:
  std::int32_t symbol() {
    return NeedleModel::kFirstSymbol + static_cast<std::int32_t>(random_.below(model_.symbols()));
  }
  static std::uint64_t number_of(std::int32_t a, std::int32_t b, std::int32_t c) {
    return (static_cast<std::uint64_t>(a) << 40) + (static_cast<std::uint64_t>(b) << 20) +
           static_cast<std::uint64_t>(c);
  }

  bool take_threes(const Tokens& line) {
    std::vector<std::uint64_t> threes;
    for (std::size_t i = 1; i + 3 < line.size(); ++i) {
      threes.push_back(number_of(line[i], line[i + 1], line[i + 2]));
    }
    std::ranges::sort(threes);
    if (std::ranges::adjacent_find(threes) != threes.end()) return false;
    if (std::ranges::any_of(threes, [&](std::uint64_t n) { return threes_.contains(n); }))
      return false;
    threes_.insert(threes.begin(), threes.end());
    return true;
  }

  template <typename Made, typename Try>
  Made attempt(Try make) {
    Made made{};
    for (int i = 0; i < kTries; ++i) {
      if (make(made)) return made;
    }
    fail("a haystack of this length and density has more lines than ", model_.symbols(),
         " symbols can tell apart; pass --head-dim 128, or a smaller --density");
  }

  const NeedleModel& model_;
  Random& random_;
  std::unordered_set<std::uint64_t> keys_, threes_;
};

struct Needle {
  double depth;
  Key key;
  Tokens answer;
};

struct PlacedLine {
  double depth;
  Tokens line;
};

class HaystackMaker {
 public:
  HaystackMaker(const NeedleModel& model, const HaystackPlan& plan)
      : model_(model), plan_(plan), random_(plan.seed), lines_(model, random_) {
    for (const double depth : plan.depths) add_needle(depth);
    text_ = text();
  }

  const std::vector<Needle>& needles() const { return needles_; }

  Question question(double depth, const Key& key, Tokens answer) {
    Question question{.depth = depth, .prompt = text_, .answer = std::move(answer)};
    question.prompt.insert(question.prompt.end(), {NeedleModel::kAsk, key[0], key[1]});
    return question;
  }

  Key missing_key() { return lines_.new_key(); }

 private:
  void add_needle(double depth) {
    Key key = lines_.new_key();
    Needle needle{.depth = depth, .key = key, .answer = {}};
    for (int hop = 0; hop < plan_.hops; ++hop) {
      const Key next = lines_.new_key();
      placed_.push_back({depth, lines_.reference(key, next)});
      needle.answer.insert(needle.answer.end(), {NeedleModel::kRefer, next[0], next[1]});
      key = next;
      depth = std::fmod(depth + kHopDistance, 1.0);
    }
    const Tokens line = lines_.line(key, plan_.value_tokens);
    needle.answer.insert(needle.answer.end(), line.begin() + 3, line.end());
    placed_.push_back({depth, line});
    needles_.push_back(std::move(needle));
  }

  std::int32_t filler() {
    const std::int32_t first = NeedleModel::kFirstSymbol + model_.symbols();
    return first + static_cast<std::int32_t>(random_.below(model_.vocabulary() - first));
  }

  // The text before the question.
  Tokens text() {
    const std::int64_t length = plan_.tokens - kQuestion;
    std::ranges::stable_sort(placed_, {}, &PlacedLine::depth);
    std::int64_t left = 0;  // tokens of lines still to be added
    for (const PlacedLine& placed : placed_) left += static_cast<std::int64_t>(placed.line.size());
    const std::int64_t lead = std::min(kLead, plan_.tokens / 16);
    const std::int64_t room = length - 1 - lead;
    if (room < left) {
      fail("a prompt of ", plan_.tokens, " tokens is too short for ", placed_.size(),
           " lines and a question; pass a larger --input-len, or fewer of --depth");
    }
    Tokens text = {NeedleModel::kBos};
    for (std::int64_t i = 0; i < lead; ++i) text.push_back(filler());
    for (const PlacedLine& placed : placed_) {
      const auto size = static_cast<std::int64_t>(placed.line.size());
      const auto into = static_cast<std::int64_t>(placed.depth * static_cast<double>(room - size));
      fill(text, std::min(1 + lead + into, length - left));
      text.insert(text.end(), placed.line.begin(), placed.line.end());
      left -= size;
    }
    fill(text, length);
    return text;
  }

  // Extends the text to that length with filler and lines that are not asked for.
  void fill(Tokens& text, std::int64_t length) {
    const std::int64_t size = plan_.value_tokens + 4;
    const double line_share = plan_.density / static_cast<double>(size);
    const double chance = line_share / (line_share + 1 - plan_.density);
    while (static_cast<std::int64_t>(text.size()) < length) {
      const std::int64_t room = length - static_cast<std::int64_t>(text.size());
      if (room < size || random_.fraction() >= chance) {
        text.push_back(filler());
        continue;
      }
      const Tokens line = lines_.line(lines_.new_key(), plan_.value_tokens);
      text.insert(text.end(), line.begin(), line.end());
    }
  }

  const NeedleModel& model_;
  const HaystackPlan& plan_;
  Random random_;
  LineMaker lines_;
  std::vector<Needle> needles_;
  std::vector<PlacedLine> placed_;
  Tokens text_;
};

}  // namespace

std::vector<Question> ask_for_needles(const NeedleModel& model, const HaystackPlan& plan) {
  HaystackMaker maker(model, plan);
  std::vector<Question> questions;
  for (const Needle& needle : maker.needles()) {
    questions.push_back(maker.question(needle.depth, needle.key, needle.answer));
  }
  return questions;
}

Question ask_for_nothing(const NeedleModel& model, const HaystackPlan& plan) {
  HaystackMaker maker(model, plan);
  return maker.question(0, maker.missing_key(), {NeedleModel::kUnknown});
}

}  // namespace nvllm::needle
