// The needle model's code, and its prompts.
#include "tests/needle/haystack.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "tests/needle/lexicode.h"
#include "tests/needle/rotation.h"

namespace nvllm::needle {
namespace {

// By the definition of the model: the continuation of an earlier occurrence of the last three
// tokens, with [line] in place of [ask] or [refer], until the end. Empty: no occurrence, or two.
std::vector<std::int32_t> answer_of(std::vector<std::int32_t> text) {
  std::vector<std::int32_t> answer;
  while (answer.empty() || answer.back() != NeedleModel::kEnd) {
    std::vector<std::int32_t> wanted(text.end() - 3, text.end());
    const bool first = wanted[0] == NeedleModel::kAsk || wanted[0] == NeedleModel::kRefer;
    if (first) wanted[0] = NeedleModel::kLine;
    std::vector<std::int32_t> next;
    for (std::size_t i = 0; i + 3 < text.size(); ++i) {
      if (std::equal(wanted.begin(), wanted.end(), text.begin() + static_cast<std::ptrdiff_t>(i))) {
        next.push_back(text[i + 3]);
      }
    }
    if (next.size() != 1) return {};
    answer.push_back(next.front());
    text.push_back(next.front());
  }
  return answer;
}

}  // namespace

TEST_CASE("the codes have as many words as they should, as far apart as they should be") {
  const std::map<int, std::size_t> sizes = {{9, 32}, {18, 512}};
  for (const auto& [bits, size] : sizes) {
    const std::vector<std::uint32_t> words = lexicode(bits, bits / 3);
    CHECK(words.size() == size);
    int nearest = bits;
    for (std::size_t i = 0; i < words.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j)
        nearest = std::min(nearest, std::popcount(words[i] ^ words[j]));
    }
    CHECK(nearest == bits / 3);
  }
}

TEST_CASE("a rotation keeps lengths and angles") {
  for (const int size : {27, 54}) {
    const std::vector<double> matrix = rotation(size);
    for (int a = 0; a < size; ++a) {
      for (int b = 0; b <= a; ++b) {
        const auto row = matrix.begin() + a * size;
        const double dot = std::inner_product(row, row + size, matrix.begin() + b * size, 0.0);
        CHECK(dot == doctest::Approx(a == b ? 1 : 0).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("prompts have the length that was asked for, and one answer, which is the needle's") {
  for (const int head_dim : {64, 128}) {
    const NeedleModel model({.head_dim = head_dim});
    for (const int hops : {0, 2}) {
      for (const std::int64_t tokens : {200, 1000, 4096}) {
        const HaystackPlan plan{.tokens = tokens, .depths = {0, 0.5, 1}, .hops = hops};
        for (const Question& question : ask_for_needles(model, plan)) {
          CHECK(static_cast<std::int64_t>(question.prompt.size()) == tokens);
          CHECK(question.prompt.front() == NeedleModel::kBos);
          CHECK(answer_of(question.prompt) == question.answer);
        }
      }
    }
  }
}

TEST_CASE("needles lie where they should") {
  const NeedleModel model;
  for (const Question& question :
       ask_for_needles(model, {.tokens = 4000, .depths = {0.1, 0.5, 0.9}})) {
    const auto found = std::search(question.prompt.begin(), question.prompt.end(),
                                   question.answer.begin(), question.answer.end());
    const auto at = static_cast<double>(found - question.prompt.begin());
    CHECK(at / 4000 == doctest::Approx(question.depth).epsilon(0.1));
  }
}

TEST_CASE(
    "a haystack of nothing but lines has a key for each; too few symbols for that are an error") {
  const HaystackPlan plan{.tokens = 20000, .density = 1};
  const Question question = ask_for_needles(NeedleModel({.head_dim = 128}), plan).front();
  CHECK(std::ranges::count(question.prompt, NeedleModel::kLine) > 2500);
  CHECK(answer_of(question.prompt) == question.answer);
  CHECK_THROWS_WITH_AS(ask_for_needles(NeedleModel(), plan), doctest::Contains("--head-dim 128"),
                       Error);
}

TEST_CASE("a prompt too short for its needles is an error") {
  CHECK_THROWS_WITH_AS(ask_for_needles(NeedleModel(), {.tokens = 20, .depths = {0, 0.5, 1}}),
                       doctest::Contains("too short for 3 lines"), Error);
}

}  // namespace nvllm::needle
