// Suggestions for names that do not exist: "did you mean ...?"
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

// The candidate that is fewest edits away from the word; empty if none is near, that is within a
// third of its letters. A swap of two neighbouring letters is one edit.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

// The name of which a single word is almost certainly a misspelling: the word is in small letters,
// begins as the name does, and is one edit away from it, or two if the name has six letters or
// more. Empty if there is none. It is stricter than nearest_name() because the word could also be a
// prompt: "what" and "What" are no "chat".
std::string mistyped_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace nvllm::launcher
