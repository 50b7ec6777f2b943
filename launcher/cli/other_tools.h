// Words that users of vLLM, SGLang, llama.cpp or ollama may type, and their equivalents here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

// Replaces words of other programs by the equivalent arguments of this one:
//   run MODEL [PROMPT]  ->  chat --model MODEL [PROMPT]
//   show MODEL          ->  inspect --model MODEL
std::vector<std::string> in_own_words(std::vector<std::string> arguments);

// Why a command does not exist, and what to use instead; empty: the word is not known.
std::string_view answer_to_word(std::string_view word);

// Why an option does not exist, and what to use instead; empty: it is not known. name: with its
// dashes.
std::string_view answer_to_option(std::string_view name);

// The long name of a short option, "--model" for "-m"; empty: none.
std::string_view long_name(std::string_view short_name);
// The inverse of long_name().
std::string_view short_name(std::string_view long_name);

}  // namespace nvllm::launcher
