// Suggestions for names that do not exist: "did you mean ...?"
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

// The candidate with the smallest edit distance to the word; empty if none is within a third of the
// word's letters. Swapping two neighbouring letters is one edit.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

// The name of which a single word is almost certainly a misspelling: the word is in lower case,
// starts as the name does, and is one edit away from it, or two if the name has six letters or
// more. Empty if there is none. It is stricter than nearest_name() because the word could also be a
// prompt: "what" and "What" do not mean "chat".
std::string mistyped_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace nvllm::launcher
