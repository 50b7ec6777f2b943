// What people type who know vLLM, SGLang, llama.cpp or ollama, and what it is here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nvllm::launcher {

// The arguments with the words of other programs that mean the same here replaced:
//   run MODEL [PROMPT]  ->  chat --model MODEL [PROMPT]
//   show MODEL          ->  inspect --model MODEL
std::vector<std::string> in_own_words(std::vector<std::string> arguments);

// Why there is no such command, and what to use; empty: nothing is known of this word.
std::string_view answer_to_word(std::string_view word);

// Why there is no such option, and what to use; empty: nothing is known of it. name: with its
// dashes.
std::string_view answer_to_option(std::string_view name);

// The long name of a short option, "--model" of "-m"; empty: there is none.
std::string_view long_name(std::string_view short_name);
// The other way round.
std::string_view short_name(std::string_view long_name);

}  // namespace nvllm::launcher
