#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

void store_prompt_ids(Options& options, const OptionValue& value) {
  options.generate.prompts.push_back(value.ids());
}

void store_prompt(Options& options, const OptionValue& value) {
  if (value.text().empty()) refuse(value.name(), " '': an empty prompt; pass a text");
  options.generate.texts.emplace_back(value.text());
}

void store_stop(Options& options, const OptionValue& value) {
  if (value.text().empty()) refuse(value.name(), " '': pass the text that ends an answer");
  options.generate.stop.emplace_back(value.text());
}

void store_stream(Options& options, const OptionValue&) {
  options.generate.stream = true;
}

void store_input(Options& options, const OptionValue& value) {
  options.generate.input = value.path("a file of JSON lines, or - for standard input");
}

void store_output(Options& options, const OptionValue& value) {
  options.generate.output = value.path("a file, or leave it out for standard output");
}

void store_resume(Options& options, const OptionValue&) {
  options.generate.resume = true;
}

void store_generation_config(Options& options, const OptionValue& value) {
  options.generate.generation_config =
      value.one_of<bool>("source", {{"auto", true}, {"none", false}});
}

void check(const Options& options) {
  check_engine(options);
  const GenerateOptions& generate = options.generate;
  if (generate.input.empty() && generate.prompts.empty() && generate.texts.empty()) {
    refuse("generate needs a prompt: --prompt TEXT, --prompt-ids 1,2,3 or --input FILE.jsonl");
  }
  if (!generate.input.empty() && !generate.texts.empty()) {
    refuse("--prompt with --input ", generate.input, ": pass one of them");
  }
  if (generate.stream && generate.resume) {
    refuse(
        "--stream with --resume: an output with pieces cannot be gone on with; pass one of them");
  }
  if (!generate.input.empty() && !generate.prompts.empty()) {
    refuse("--prompt-ids with --input ", generate.input, ": pass one of them");
  }
  if (generate.resume && generate.output.empty()) {
    refuse("--resume: needs the file that was begun; pass --output FILE.jsonl");
  }
  if (generate.input != "-" && !generate.input.empty() && generate.input == generate.output) {
    refuse("--output ", generate.output, ": is the input; pass another file");
  }
}

}  // namespace

Command generate_options() {
  return {"generate",
          "answers prompts, one after the other from a file or the command line, as JSON lines",
          join_rows(
              {model_rows(),
               {
                   {"--prompt", nullptr, "TEXT", "a text to be continued; may come repeatedly",
                    nullptr, store_prompt, true},
                   {"--prompt-ids", nullptr, "ID,ID...",
                    "a prompt, as token ids; may come repeatedly", nullptr, store_prompt_ids, true},
                   {"--input", nullptr, "FILE|-",
                    "prompts as JSON lines, {\"prompt\": ...}, {\"messages\": [...]} or\n"
                    "{\"prompt_token_ids\": [1, 2, 3]}, each with sampling options of its own\n"
                    "where it likes; -: from standard input",
                    nullptr, store_input},
                   {"--output", nullptr, "FILE", "where the answers go, as JSON lines",
                    "standard output", store_output},
                   {"--resume", nullptr, nullptr,
                    "goes on with an --output that was begun with the same input", nullptr,
                    store_resume},
                   {"--stream", nullptr, nullptr,
                    "every piece of an answer is a line, too, as soon as it is there:\n"
                    "{\"line\": 1, \"index\": 0, \"delta\": \"...\", \"token_ids\": [...]}",
                    nullptr, store_stream},
                   {"--stop", nullptr, "TEXT",
                    "a text that ends an answer and is no part of it; may come repeatedly", nullptr,
                    store_stop, true},
                   chat_template_row(),
                   {"--generation-config", nullptr, "auto|none",
                    "auto: the model's generation_config.json gives the defaults of\n"
                    "temperature, top-k, top-p, min-p, penalties and the longest answer",
                    "auto", store_generation_config},
               },
               sampling_rows(),
               engine_rows(),
               group_rows()}),
          check};
}

}  // namespace nvllm::launcher
