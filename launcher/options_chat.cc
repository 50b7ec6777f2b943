#include <string_view>
#include <vector>

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

// One answer at a time, as text; and defaults of its own.
OptionRows chat_sampling_rows() {
  OptionRows rows = sampling_rows();
  std::erase_if(rows, [](const OptionRow& row) {
    const std::string_view name = row.name;
    return name == "--n" || name == "--logprobs" || name == "--prompt-logprobs";
  });
  for (OptionRow& row : rows) {
    const std::string_view name = row.name;
    if (name == "--max-tokens") row.fallback = "none";
    if (name == "--temperature") row.fallback = "the model's; 0.8 where it says nothing";
    if (name == "--top-k") row.fallback = "the model's; 40 where it says nothing";
    if (name == "--top-p") row.fallback = "the model's; 0.95 where it says nothing";
    if (name == "--min-p") row.fallback = "the model's; 0.05 where it says nothing";
  }
  return rows;
}

Command chat_options() {
  return {"chat",
          "talks with a model; with a prompt, answers it and ends",
          join_rows({model_rows(),
                     {
                         {"--system", "--system-prompt", "TEXT", "the system's message",
                          "what the chat template says itself", store_system},
                         chat_template_row(),
                     },
                     chat_sampling_rows(),
                     engine_rows(),
                     group_rows()}),
          check_engine,
          "[PROMPT]",
          store_word};
}

}  // namespace nvllm::launcher
