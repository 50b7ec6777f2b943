// Workload: the prompts of a benchmark, and how many tokens it generates for each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string_view>
#include <vector>

#include "launcher/cli/options.h"
#include "runtime/request.h"

namespace nvllm::launcher {

// The defaults are those of nano-vllm's benchmark.
struct WorkloadOptions {
  std::int64_t sequences = 256;
  LengthRange prompt{100, 1024};
  LengthRange output{100, 1024};
  std::uint64_t seed = 0;
  std::int64_t vocabulary = 0;  // of the model
  // Each request returns log-probabilities and has a seed of its own, so that its result is a
  // function of these options and the model.
  bool logprobs = false;
};

struct Workload {
  std::vector<runtime::Request> requests;  // temperature 0.6, EOS ignored
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
};

// Random prompts, identical to those of nano-vllm's bench.py: after random.seed(seed), for each
// prompt its length, then its ids from 0 to 10,000 (or the vocabulary's end); after all of them the
// length of each answer.
Workload make_workload(const WorkloadOptions& options);

// One request of a benchmark: a prompt, and an answer of exactly output_tokens tokens.
runtime::Request make_request(std::vector<std::int32_t> prompt, std::int64_t output_tokens);

class PythonRandom;
// A prompt of `tokens` tokens, with ids from 0 to vocabulary - 1.
std::vector<std::int32_t> random_prompt(PythonRandom& random, std::int64_t tokens,
                                        std::int64_t vocabulary);

// PythonRandom: generates the same numbers as Python's random module, so that a workload which
// another program defines by a seed is identical here.
class PythonRandom {
 public:
  // random.seed(seed)
  explicit PythonRandom(std::uint64_t seed) {
    Key key{{static_cast<std::uint32_t>(seed)}};
    if (seed >> 32 != 0) key.words.push_back(static_cast<std::uint32_t>(seed >> 32));
    engine_.seed(key);
  }

  // random.randint(min, max), with both ends included. They must be less than 2^32 - 1 apart.
  std::int64_t randint(std::int64_t min, std::int64_t max) {
    const auto count = static_cast<std::uint64_t>(max - min) + 1;
    int bits = 0;
    while (count >> bits != 0) ++bits;
    std::uint64_t number = count;
    while (number >= count) number = engine_() >> (32 - bits);
    return min + static_cast<std::int64_t>(number);
  }

 private:
  // Initializes the state like init_by_array() of the Mersenne Twister's authors, in the form of a
  // seed sequence, from which standard engines take their state.
  struct Key {
    using result_type = std::uint32_t;
    std::vector<std::uint32_t> words;

    template <class Iterator>
    void generate(Iterator first, Iterator last) const {
      std::vector<std::uint32_t> state(static_cast<std::size_t>(std::distance(first, last)));
      const std::size_t size = state.size();
      state[0] = 19650218;
      for (std::size_t i = 1; i < size; ++i) {
        state[i] = 1812433253U * mixed(state[i - 1]) + static_cast<std::uint32_t>(i);
      }
      std::size_t at = 1, word = 0;
      const auto next = [&] {
        if (++at == size) state[0] = state[size - 1], at = 1;
      };
      for (std::size_t i = std::max(size, words.size()); i > 0; --i) {
        state[at] = (state[at] ^ (mixed(state[at - 1]) * 1664525U)) + words[word] +
                    static_cast<std::uint32_t>(word);
        next();
        word = (word + 1) % words.size();
      }
      for (std::size_t i = size - 1; i > 0; --i) {
        state[at] =
            (state[at] ^ (mixed(state[at - 1]) * 1566083941U)) - static_cast<std::uint32_t>(at);
        next();
      }
      state[0] = 0x80000000U;
      std::copy(state.begin(), state.end(), first);
    }

    static std::uint32_t mixed(std::uint32_t value) { return value ^ (value >> 30); }
  };

  std::mt19937 engine_;
};

}  // namespace nvllm::launcher
