#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

void store_system(Options& options, const OptionValue& value) {
  options.chat.system = value.text();
}

void store_word(Options& options, const std::string& word) {
  if (options.chat.prompt)
    refuse("'", word, "': is a second prompt; put one with spaces in quotes");
  if (word.empty()) refuse("'': an empty prompt; pass a text");
  options.chat.prompt = word;
}

}  // namespace

Command chat_options() {
  return {"chat",
          "talks with a model; with a prompt, answers it and ends",
          join_rows({model_rows(),
                     {
                         {"--system", nullptr, "TEXT", "the system's message",
                          "what the chat template says itself", store_system},
                         chat_template_row(),
                     },
                     sampling_rows(),
                     engine_rows(),
                     group_rows()}),
          check_engine,
          "[PROMPT]",
          store_word};
}

}  // namespace nvllm::launcher
