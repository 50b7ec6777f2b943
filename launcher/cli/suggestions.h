// What users may have meant by a command, an option or another name that does not exist: a similar
// name ("did you mean ...?"), or what vLLM, SGLang, llama.cpp or ollama call so.
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

// Replaces words of other programs by the equivalent arguments of this one:
//   run MODEL [PROMPT]  ->  chat --model MODEL [PROMPT]
//   show MODEL          ->  inspect --model MODEL
std::vector<std::string> translate_other_tools(std::vector<std::string> arguments);

// Why a command does not exist, and what to use instead; empty: the word is not known.
std::string_view hint_for_command(std::string_view word);

// Why an option does not exist, and what to use instead; empty: it is not known. name: with its
// dashes. command: one whose options have other answers, "bench serve".
std::string_view hint_for_option(std::string_view name, std::string_view command = "");

// The only candidate that starts with the word, "--tensor-parallel-size" for "--tensor-parallel";
// empty: there is none, or more than one.
std::string completed_name(std::string_view word, const std::vector<std::string>& candidates);

// The long name of a short option, "--model" for "-m"; empty: none.
std::string_view long_name(std::string_view short_name);
// The inverse of long_name().
std::string_view short_name(std::string_view long_name);

}  // namespace nvllm::launcher
