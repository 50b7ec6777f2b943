#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

void store_input(Options& options, const OptionValue& value) {
  options.text.input = value.path("a file of JSON lines, or - for standard input");
}

void store_chat_template(Options& options, const OptionValue& value) {
  options.text.chat_template = value.path("a file with a Jinja template");
}

void store_add_special_tokens(Options& options, const OptionValue&) {
  options.text.add_special_tokens = true;
}

void store_skip_special_tokens(Options& options, const OptionValue&) {
  options.text.skip_special_tokens = true;
}

void store_word(Options& options, const std::string& word) {
  options.text.words.push_back(word);
}

void check(const Options& options) {
  const TextOptions& text = options.text;
  if (text.input.empty() && text.words.empty()) {
    refuse(options.command, " needs something to work on: --input FILE.jsonl, --input -, or ",
           options.command == "detokenize" ? "token ids" : "a text");
  }
  if (!text.input.empty() && !text.words.empty()) {
    refuse("'", text.words.front(), "' with --input ", text.input, ": pass one of them");
  }
}

OptionRow input_row(const char* help) {
  return {"--input", nullptr, "FILE|-", help, nullptr, store_input};
}

}  // namespace

OptionRow chat_template_row() {
  return {"--chat-template",
          nullptr,
          "FILE",
          "a Jinja template to use instead of the model's own",
          nullptr,
          store_chat_template};
}

Command tokenize_options() {
  return {"tokenize",
          "turns text into token ids",
          {
              model_row(),
              input_row("JSON lines {\"text\": ...}, each with \"add_special_tokens\" where it\n"
                        "likes; every line is answered by one, {\"ids\": [...]}; -: from\n"
                        "standard input"),
              {"--add-special-tokens", nullptr, nullptr,
               "adds what the model wants around a text (BOS and the like), where a\n"
               "line does not say it itself",
               nullptr, store_add_special_tokens},
          },
          check,
          "[TEXT]...",
          store_word};
}

Command detokenize_options() {
  return {"detokenize",
          "turns token ids into text",
          {
              model_row(),
              input_row("JSON lines {\"ids\": [...]}, each with \"skip_special_tokens\" where it\n"
                        "likes; every line is answered by one, {\"text\": ...}; -: from\n"
                        "standard input"),
              {"--skip-special-tokens", nullptr, nullptr,
               "leaves special tokens out, where a line does not say it itself", nullptr,
               store_skip_special_tokens},
          },
          check,
          "[ID]...",
          store_word};
}

Command template_options() {
  return {"template",
          "shows what a model's chat template makes of conversations",
          {
              model_row(),
              input_row("JSON lines {\"messages\": [...], \"tools\": [...], \"options\": {...}},\n"
                        "the last two where they are needed; options are what templates know:\n"
                        "add_generation_prompt, enable_thinking, ...; every line is answered by\n"
                        "one, {\"text\": ..., \"ids\": [...]}; -: from standard input"),
              chat_template_row(),
          },
          check,
          "[MESSAGE]...",
          store_word};
}

}  // namespace nvllm::launcher
