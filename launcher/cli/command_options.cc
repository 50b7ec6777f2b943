// The options of every command but bench (bench_options.cc).
#include "launcher/cli/option_table.h"

namespace nvllm::launcher {
namespace {

// generate

void check_generate(const Options& options) {
  check_engine(options);
  check_api(options);
  const GenerateOptions& generate = options.generate;
  if (generate.input.empty() && generate.prompts.empty() && generate.texts.empty()) {
    refuse("generate needs a prompt: --prompt TEXT, --prompt-ids 1,2,3 or --input FILE.jsonl");
  }
  if (!generate.input.empty() && !generate.texts.empty()) {
    refuse("--prompt with --input ", generate.input, ": pass one of them");
  }
  if (generate.stream && generate.resume) {
    refuse("--stream with --resume: an output with pieces cannot be resumed; pass one of them");
  }
  if (!generate.input.empty() && !generate.prompts.empty()) {
    refuse("--prompt-ids with --input ", generate.input, ": pass one of them");
  }
  if (generate.resume && generate.output.empty()) {
    refuse("--resume: needs the file that an earlier run wrote; pass --output FILE.jsonl");
  }
  if (generate.overwrite && generate.output.empty()) {
    refuse("--overwrite: needs the file to begin anew; pass --output FILE.jsonl");
  }
  if (generate.overwrite && generate.resume) {
    refuse("--overwrite with --resume: one throws away what the other keeps; pass one of them");
  }
  if (generate.input != "-" && !generate.input.empty() && generate.input == generate.output) {
    refuse("--output ", generate.output, ": is the input; pass another file");
  }
}

void store_prompt(Options& options, const OptionValue& value) {
  if (value.text().empty()) refuse(value.name(), " '': an empty prompt; pass a text");
  options.generate.texts.emplace_back(value.text());
}

std::string stop_text(const OptionValue& value) {
  if (value.text().empty()) refuse(value.name(), " '': pass the text that ends an answer");
  return std::string(value.text());
}

OptionRows generate_rows() {
  const Into into(&Options::generate);
  return {
      {"--prompt", "TEXT", "a text to be continued; may come repeatedly", nullptr, store_prompt,
       nullptr, true},
      {"--prompt-ids", "ID,ID...", "a prompt, as token ids; may come repeatedly", nullptr,
       [](Options& o, const OptionValue& v) { o.generate.prompts.push_back(v.ids()); }, nullptr,
       true},
      {"--input", "FILE|-",
       "prompts as JSON lines, {\"prompt\": ...}, {\"messages\": [...]} or\n"
       "{\"prompt_token_ids\": [1, 2, 3]}; a line may have sampling options of\n"
       "its own; or lines of an OpenAI batch, {\"custom_id\": ..., \"url\": ...,\n"
       "\"body\": {...}}; -: from standard input",
       nullptr,
       into.path(&GenerateOptions::input, "a file of JSON lines, or - for standard input")},
      {"--output", "FILE",
       "where the answers go, as JSON lines; a file that is there already is\n"
       "refused without --resume or --overwrite",
       "standard output",
       into.path(&GenerateOptions::output, "a file, or leave it out for standard output")},
      {"--resume", nullptr,
       "continues an --output that an earlier run with the same input, model\n"
       "and options wrote in part",
       nullptr, into.on(&GenerateOptions::resume)},
      {"--overwrite", nullptr, "begins an --output that is there already anew", nullptr,
       into.on(&GenerateOptions::overwrite)},
      {"--stream", nullptr,
       "also prints every piece of an answer as a line, as soon as it is there:\n"
       "{\"line\": 1, \"index\": 0, \"delta\": \"...\", \"token_ids\": [...]}",
       nullptr, into.on(&GenerateOptions::stream)},
      {"--stop", "TEXT", "a text that ends an answer and is no part of it; may come repeatedly",
       nullptr, [](Options& o, const OptionValue& v) { o.generate.stop.push_back(stop_text(v)); },
       nullptr, true},
      generation_config_row(),
  };
}

// chat

void store_chat_prompt(Options& options, const std::string& word) {
  if (options.chat.prompt) {
    refuse("'", word, "': is a second prompt; put one with spaces in quotes");
  }
  if (word.empty()) refuse("'': an empty prompt; pass a text");
  options.chat.prompt = word;
}

OptionRows chat_rows() {
  return {
      {"--prompt", "TEXT", "the prompt, which may also stand alone, at the end", nullptr,
       [](Options& o, const OptionValue& v) { store_chat_prompt(o, std::string(v.text())); }},
      {"--system", "TEXT", "the system message", "what the chat template says itself",
       [](Options& o, const OptionValue& v) { o.chat.system = v.text(); }, "--system-prompt"},
      {"--stop", "TEXT", "a text that ends an answer and is no part of it; may come repeatedly",
       nullptr, [](Options& o, const OptionValue& v) { o.chat.stop.push_back(stop_text(v)); },
       nullptr, true},
      {"--history", "FILE|off", "where a chat keeps what is typed, for the next one; off: nowhere",
       "~/.local/state/nvllm/chat_history",
       [](Options& o, const OptionValue& v) {
         const std::string path = v.path("a file, or off");
         o.chat.history = path == "off" ? "" : path;
       }},
  };
}

// tokenize, detokenize, template

void store_text_word(Options& options, const std::string& word) {
  options.text.words.push_back(word);
}

void check_text(const Options& options) {
  const TextOptions& text = options.text;
  if (text.input.empty() && text.words.empty()) {
    refuse(options.command, " needs something to work on: --input FILE.jsonl, --input -, or ",
           options.command == "detokenize" ? "token ids" : "a text");
  }
  if (!text.input.empty() && !text.words.empty()) {
    refuse("'", text.words.front(), "' with --input ", text.input, ": pass one of them");
  }
}

const Into kIntoText(&Options::text);

OptionRow text_input_row(const char* help) {
  return {"--input", "FILE|-", help, nullptr,
          kIntoText.path(&TextOptions::input, "a file of JSON lines, or - for standard input")};
}

Command text_command(const char* name, const char* summary, OptionRows rows, const char* words) {
  return {name, summary, join_rows({{model_row()}, rows}), check_text, words, store_text_word};
}

// pull, inspect, completion

void store_pull_model(Options& options, const std::string& word) {
  if (!options.model.path.empty()) refuse("'", word, "': is a second model; pull one at a time");
  options.model.path = OptionValue("pull", word).path("the name of a model");
}

void check_pull(const Options& options) {
  if (options.model.path.empty()) refuse("pull needs a model: pass its name, as Qwen/Qwen3-0.6B");
}

void check_inspect(const Options& options) {
  if (options.inspect_checksums && !options.inspect_load) {
    refuse("--checksums: are of weights that were loaded; pass --load, too");
  }
}

void store_shell(Options& options, const std::string& word) {
  if (!options.shell.empty()) refuse("'", word, "': is a second shell; pass one of them");
  options.shell =
      OptionValue("completion", word)
          .one_of<std::string>("shell", {{"bash", "bash"}, {"zsh", "zsh"}, {"fish", "fish"}});
}

void check_shell(const Options& options) {
  if (options.shell.empty()) refuse("completion needs a shell: pass bash, zsh or fish");
}

}  // namespace

void store_model_word(Options& options, const std::string& word) {
  if (!options.model.path.empty()) {
    refuse("'", word, "': the model is ", options.model.path, " already; ",
           options.serve.served_model_names.empty()
               ? "pass one of them"
               : "pass it before --served-model-name NAME NAME...");
  }
  options.model.path = OptionValue("MODEL", word).path("a model's folder, file or Hugging Face id");
}

OptionRows chat_template_rows() {
  return {
      {"--chat-template", "FILE|TEXT",
       "a Jinja template to use instead of the model's own: a file, or the\n"
       "template itself, which has {{ or {%",
       nullptr, kIntoText.path(&TextOptions::chat_template, "a file with a Jinja template")},
      {"--special-tokens-in-messages", nullptr,
       "special tokens written in messages, such as <|im_end|>, are read as such,\n"
       "as transformers does; otherwise they are text like any other",
       nullptr, kIntoText.on(&TextOptions::special_tokens_in_messages)},
  };
}

std::vector<Command> generating_commands() {
  return {
      {"chat", "talks with a model; with a prompt, answers it and ends",
       join_rows({model_rows(), chat_rows(), chat_template_rows(), chat_sampling_rows(),
                  engine_rows(), group_rows()}),
       check_engine, "[PROMPT]", store_chat_prompt},
      {"generate", "answers prompts from a file or the command line, as JSON lines",
       join_rows({model_rows(), generate_rows(), chat_template_rows(), sampling_rows(), api_rows(),
                  engine_rows(), group_rows()}),
       check_generate},
      serve_command(),
  };
}

std::vector<Command> other_commands() {
  const OptionRows inspect = {
      switch_row("--load", "starts the workers, and every rank really loads its part",
                 &Options::inspect_load),
      switch_row("--checksums", "with --load: adds a checksum of each rank's parameters",
                 &Options::inspect_checksums),
      json_row("prints the result as JSON, with every slice of every parameter")};
  const OptionRows selftest = {
      {"--seconds", "N", "then keeps calls and collectives going, all checked, for N seconds", "0",
       [](Options& o, const OptionValue& v) { o.selftest_seconds = v.real(0, 1e9); }},
      json_row(),
      memory_report_row()};
  return {
      {"pull",
       "downloads a model from the Hugging Face hub into the local cache",
       {},
       check_pull,
       "ORG/NAME[:QUANTIZATION][@REVISION]",
       store_pull_model},
      {"inspect", "shows a model and which part of it every rank owns, and can load it",
       join_rows({model_rows(), group_rows(), inspect}), check_inspect, "[MODEL]",
       store_model_word},
      {"selftest", "starts the workers, checks calls and collectives between them, measures both",
       join_rows({group_rows(), selftest})},
      {"doctor",
       "tells what this machine has for nvllm, and how to fix what is wrong with it",
       {json_row()}},
      text_command(
          "tokenize", "turns text into token ids",
          {text_input_row("JSON lines {\"text\": ...}, each with \"add_special_tokens\" where it\n"
                          "likes; every line is answered by one, {\"ids\": [...]}; -: from\n"
                          "standard input"),
           {"--add-special-tokens", nullptr,
            "adds what the model expects around a text (BOS and the like), where a\n"
            "line does not say it itself",
            nullptr, kIntoText.on(&TextOptions::add_special_tokens)}},
          "[TEXT]..."),
      text_command("detokenize", "turns token ids into text",
                   {text_input_row(
                        "JSON lines {\"ids\": [...]}, each with \"skip_special_tokens\" where it\n"
                        "likes; every line is answered by one, {\"text\": ...}; -: from\n"
                        "standard input"),
                    {"--skip-special-tokens", nullptr,
                     "leaves special tokens out, where a line does not say it itself", nullptr,
                     kIntoText.on(&TextOptions::skip_special_tokens)}},
                   "[ID]..."),
      text_command(
          "template", "shows what a model's chat template makes of conversations",
          join_rows({{text_input_row(
                         "JSON lines {\"messages\": [...], \"tools\": [...], \"options\": {...}},\n"
                         "the last two where they are needed; options are what templates know:\n"
                         "add_generation_prompt, enable_thinking, ...; every line is answered by\n"
                         "one, {\"text\": ..., \"ids\": [...]}; -: from standard input")},
                     chat_template_rows()}),
          "[MESSAGE]..."),
      {"completion",
       "prints a script that makes a shell complete this program's commands and options",
       {},
       check_shell,
       "bash|zsh|fish",
       store_shell},
  };
}

}  // namespace nvllm::launcher
