// PythonRandom: the numbers that Python's random module draws, so that a workload which another program
// defines by a seed is the same one here, number by number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

namespace nvllm::launcher {

class PythonRandom {
 public:
  // random.seed(seed)
  explicit PythonRandom(std::uint64_t seed) {
    Key key{{static_cast<std::uint32_t>(seed)}};
    if (seed >> 32 != 0) key.words.push_back(static_cast<std::uint32_t>(seed >> 32));
    engine_.seed(key);
  }

  // random.randint(least, most): both may come. They are less than 2^32 - 1 apart.
  std::int64_t randint(std::int64_t least, std::int64_t most) {
    const auto count = static_cast<std::uint64_t>(most - least) + 1;
    int bits = 0;
    while (count >> bits != 0) ++bits;
    std::uint64_t drawn = count;
    while (drawn >= count) drawn = engine_() >> (32 - bits);
    return least + static_cast<std::int64_t>(drawn);
  }

 private:
  // Seeds the engine's state as init_by_array() of the authors of the Mersenne Twister does, in the form
  // that standard engines take their state from.
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
