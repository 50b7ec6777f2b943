// Finding stop strings in a text that comes in pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nvllm::tokenizer {

// An Aho-Corasick automaton: linear in the text, whatever the stop strings.
class StopStrings {
 public:
  explicit StopStrings(const std::vector<std::string>& strings);

  using State = std::uint32_t;
  static constexpr State kStart = 0;

  State next(State state, char byte) const;
  // How many of the last bytes are the beginning of a stop string (or all of it): these must not be
  // shown yet.
  std::uint32_t held(State state) const { return nodes_[state].depth; }
  // The length of the longest stop string that ends here; 0 if none does.
  std::uint32_t found(State state) const { return nodes_[state].found; }

 private:
  struct Node {
    char byte = 0;
    State first_child = 0, sibling = 0;  // 0: none
    State fallback = 0;                  // the longest proper suffix that is in the tree, too
    std::uint32_t depth = 0, found = 0;
  };
  State child(State state, char byte) const;
  void link_fallbacks();

  std::vector<Node> nodes_;
};

}  // namespace nvllm::tokenizer
