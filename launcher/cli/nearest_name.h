// What somebody may have meant who wrote a name that there is not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

// The candidate that is fewest edits away from the word; empty if none is near. Two neighbouring letters that
// have changed places are one edit.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

// The name that a single word was hardly meant to be anything but: the word is in small letters, begins as the
// name does, and is one edit away from it, or two from a name of six letters or more. Stricter than
// nearest_name(), since the word could also be a text of its own: "what" and "What" are no "chat". Empty if there is none.
std::string mistyped_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace nvllm::launcher
