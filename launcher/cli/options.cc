// Parses the command line: finds the command, then reads the options and words after it.
#include "launcher/cli/options.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "launcher/cli/option_table.h"
#include "launcher/cli/suggestions.h"

namespace nvllm::launcher {
namespace {

std::string general_help_hint(const std::string& command) {
  return command.empty() ? "nvllm-launch --help" : "nvllm-launch " + command + " --help";
}

[[noreturn]] void refuse_unknown(const char* kind, const std::string& given,
                                 const std::vector<std::string>& known,
                                 const std::string& command) {
  const std::string completed = completed_name(given, known);
  const std::string nearest = completed.empty() ? nearest_name(given, known) : completed;
  if (!nearest.empty()) refuse("unknown ", kind, " '", given, "'; did you mean '", nearest, "'?");
  refuse("unknown ", kind, " '", given, "'; see ", general_help_hint(command));
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> known;
  for (const Command& command : commands()) {
    if (command.name == name) return command;
    known.emplace_back(command.name);
  }
  refuse_unknown("command", name, known, "");
}

// Canonical names of "-m" and "--max_model_len".
std::string in_full(const std::string& given) {
  if (const std::string_view name = long_name(given); !name.empty()) return std::string(name);
  std::string name = given;
  if (name.starts_with("--")) std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Rejects a short option with its value in the same word: "-n2", "-m/models/a".
void check_attached_value(const Command& command, const std::string& given) {
  if (given.size() < 2 || given[0] != '-') return;
  const auto end = std::find_if_not(given.begin() + 1, given.end(), is_letter);
  const std::string name(given.begin(), end), value(end, given.end());
  if (value.empty()) return;
  const std::string_view full = long_name(name);
  for (const OptionRow& row : command.rows) {
    if (row.name == full) refuse(given, ": a value is a word of its own; pass ", name, ' ', value);
  }
  if (const std::string_view answer = hint_for_option(name, command.name); !answer.empty()) {
    refuse(given, ": ", answer);
  }
}

// named: whether a command was given; otherwise an option of all commands may have been meant.
const OptionRow& find_row(const Command& command, const std::string& given, bool named) {
  const std::string name = in_full(given);
  std::vector<std::string> known = {"--help"};
  if (!named) known.emplace_back("--version");
  for (const OptionRow& row : command.rows) {
    if (row.name == name || (row.second_name != nullptr && row.second_name == name)) return row;
    known.emplace_back(row.name);
    if (row.second_name != nullptr) known.emplace_back(row.second_name);
  }
  if (const std::string_view answer = hint_for_option(name, command.name); !answer.empty()) {
    refuse(given, ": ", answer);
  }
  check_attached_value(command, given);
  refuse_unknown("option", given, known, command.name);
}

// For commands that share their first word, the second words: "latency, startup or throughput";
// empty: no command of two words starts with this one.
std::string second_words(const std::string& first) {
  std::vector<std::string> words;
  for (const Command& command : commands()) {
    const std::string_view name = command.name;
    if (name.starts_with(first + ' ')) words.emplace_back(name.substr(first.size() + 1));
  }
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all = [] {
    std::vector<Command> list = generating_commands();
    for (const auto& more : {bench_commands(), other_commands()}) {
      list.insert(list.end(), more.begin(), more.end());
    }
    for (Command& command : list) command.rows.push_back(config_row());
    return list;
  }();
  return all;
}

namespace {

// Whether a word looks like a name: letters, digits and a few signs, but no space and no '?'.
bool looks_like_name(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') ||
           std::string_view("-_./:").find(c) != std::string_view::npos;
  });
}

bool has_letter(std::string_view text) {
  return std::any_of(text.begin(), text.end(), is_letter);
}

// Whether a word looks like a model: ORG/NAME, a .gguf file, or a folder that exists.
bool looks_like_model(const std::string& word) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(word, ignored);
  if (std::filesystem::is_directory(status)) return true;
  if (std::filesystem::exists(status) && word.ends_with(".gguf")) return true;
  const std::string name = word.substr(0, word.find('@'));  // without its revision
  if (!looks_like_name(name)) return false;
  const std::size_t slash = name.find('/');
  const bool hub_name = slash != std::string::npos && name.find('/', slash + 1) == name.npos &&
                        has_letter(name.substr(0, slash)) && has_letter(name.substr(slash + 1));
  return hub_name || name.ends_with(".gguf");
}

// Rejects a prompt of one word that is almost certainly the model.
void check_no_model(const std::string& program, const std::string& word) {
  if (!looks_like_model(word)) return;
  refuse("'", word, "': looks like a model; pass --model ", word, ". As a prompt: ", program,
         " -- ", word);
}

// Without a command: rejects a word that is not a command and was hardly meant as a prompt.
void check_prompt(const std::string& word) {
  if (const std::string_view answer = hint_for_command(word); !answer.empty()) {
    refuse("there is no command '", word, "': ", answer, ". As a prompt: nvllm-launch -- ", word);
  }
  check_no_model("nvllm-launch", word);
  std::vector<std::string> known;
  for (const Command& command : commands()) {
    const std::string name = command.name;
    known.push_back(name.substr(0, name.find(' ')));
  }
  const std::string meant = mistyped_name(word, known);
  if (meant.empty() && !looks_like_name(word)) return;
  refuse("unknown command '", word, "'; ",
         meant.empty() ? "see nvllm-launch --help." : str("did you mean '", meant, "'?"),
         " As a prompt: nvllm-launch -- ", word);
}

bool asks_for_help(const std::string& argument) {
  return argument == "--help" || argument == "-h";
}

// The command, and how many arguments name it. 0: it is `chat` with an option or a prompt.
std::pair<const Command*, std::size_t> choose_command(const std::vector<std::string>& arguments) {
  const std::string* const first = arguments.empty() ? nullptr : &arguments.front();
  const auto is_named = [&](const Command& command) {
    return first != nullptr && (*first == command.name || !second_words(*first).empty());
  };
  const bool named = std::any_of(commands().begin(), commands().end(), is_named);
  if (!named) {
    if (first != nullptr && !first->starts_with('-')) check_prompt(*first);
    return {&find_command("chat"), 0};
  }
  if (const std::string seconds = second_words(*first); !seconds.empty()) {
    if (arguments.size() < 2 || arguments[1].starts_with('-')) {
      refuse(*first, ": pass ", seconds, " after it");
    }
    return {&find_command(*first + ' ' + arguments[1]), 2};
  }
  return {&find_command(*first), 1};
}

// Reads the arguments after the command's name.
class Reader {
 public:
  Reader(const Command& command, const std::vector<std::string>& arguments, std::size_t first,
         bool named)
      : command_(command),
        arguments_(arguments),
        first_(first),
        named_(named),
        model_known_(command.store_positional == nullptr || names_model()) {}

  // The --config file names the model.
  void set_model_known() { model_known_ = true; }

  // Calls on_option(row, value) and on_word(word, literal), literal: it is after "--". Returns
  // false as soon as help is requested.
  template <typename OnOption, typename OnWord>
  bool read(OnOption on_option, OnWord on_word) const {
    bool only_words = false;         // after "--"
    const OptionRow* row = nullptr;  // the last option, if words after it are more values
    bool model_known = model_known_;
    for (std::size_t i = first_; i < arguments_.size(); ++i) {
      const std::string& argument = arguments_[i];
      const bool word = only_words || !argument.starts_with('-') || argument == "-";
      if (word && row != nullptr && model_known) {
        on_option(*row, OptionValue(row->name, argument));
        continue;
      }
      row = nullptr;
      if (word) {
        check_word(argument, only_words);
        on_word(argument, only_words);
        model_known = true;
      } else if (argument == "--" && command_.store_positional != nullptr) {
        only_words = true;
      } else if (asks_for_help(argument)) {
        return false;
      } else {
        row = read_option(i, on_option);
      }
    }
    return true;
  }

 private:
  // Whether the model is an option, and so no word.
  bool names_model() const {
    return std::any_of(arguments_.begin(), arguments_.end(), [](const std::string& argument) {
      return in_full(argument.substr(0, argument.find('='))) == "--model";
    });
  }

  // The option at arguments[i] with its value, which may be the next argument. Returns its row if
  // words after it are more values.
  template <typename OnOption>
  const OptionRow* read_option(std::size_t& i, OnOption& on_option) const {
    const std::string& argument = arguments_[i];
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const OptionRow& row = find_row(command_, name, named_);
    if (row.value == nullptr) {
      if (equals != std::string::npos) refuse(name, " takes no value; pass it alone");
      on_option(row, OptionValue(name, ""));
    } else if (equals != std::string::npos) {
      on_option(row, OptionValue(name, std::string_view(argument).substr(equals + 1)));
    } else if (i + 1 < arguments_.size()) {
      on_option(row, OptionValue(name, arguments_[++i]));
    } else {
      refuse(name, " needs a value: ", name, ' ', row.value);
    }
    return row.more_words ? &row : nullptr;
  }

  // An argument that is no option.
  void check_word(const std::string& word, bool only_words) const {
    if (command_.store_positional == nullptr) {
      refuse("'", word, "': not an option; see ", general_help_hint(command_.name));
    }
    for (const Command& other : commands()) {
      const bool is_command = word == other.name || !second_words(word).empty();
      if (named_ || only_words || !is_command) continue;
      refuse("'", word, "': a command comes first: nvllm-launch ", word, " [OPTIONS]");
    }
  }

  const Command& command_;
  const std::vector<std::string>& arguments_;
  std::size_t first_;
  bool named_;
  bool model_known_;  // whatever words come
};

// Stores the options of the --config file, if there is one, except those that the command line has.
// Returns its path.
std::string store_config(const Command& command, const Reader& reader, Options& options) {
  std::string path;
  std::set<const OptionRow*> given;
  const bool read_all = reader.read(
      [&](const OptionRow& row, const OptionValue& value) {
        given.insert(&row);
        if (row.name != std::string_view("--config")) return;
        const std::string before =
            std::exchange(path, value.path("a file of options, as YAML or JSON"));
        if (!before.empty()) refuse("--config ", before, ", --config ", path, ": pass one of them");
      },
      [](const std::string&, bool) {});
  if (path.empty() || !read_all) return path;
  for (const ConfigEntry& entry : read_config_file(path, command)) {
    if (given.contains(entry.row)) continue;
    try {
      entry.row->store(options, OptionValue(entry.name, entry.text));
    } catch (const UsageError& error) {
      refuse(entry.place, ": ", error.what());
    }
  }
  return path;
}

// Whether two paths are of one file, which is there.
bool same_file(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return std::filesystem::equivalent(one, other, ignored);
}

// Makes the model of "run [OPTIONS] MODEL [PROMPT]" the value of --model.
void name_model(const Command& command, std::vector<std::string>& arguments) {
  bool named = false;
  std::optional<std::size_t> model;
  Reader(command, arguments, 1, true)
      .read([&](const OptionRow& row,
                const OptionValue&) { named |= row.name == std::string_view("--model"); },
            [&](const std::string& word, bool literal) {
              if (!model && !literal) model = &word - arguments.data();
            });
  if (model && !named) {
    arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(*model), "--model");
  }
}

Options with_message(std::string message) {
  Options options;
  options.message = std::move(message);
  return options;
}

}  // namespace

Options parse_command_line(const std::vector<std::string>& given) {
  std::vector<std::string> arguments = translate_other_tools(given);
  if (arguments.size() > 1 && arguments.front() == "help") {  // help COMMAND means COMMAND --help
    arguments.erase(arguments.begin());
    arguments = translate_other_tools(std::move(arguments));
    arguments.emplace_back("--help");
  }
  if (!arguments.empty()) {
    const std::string& first = arguments.front();
    if (asks_for_help(first) || first == "help") return with_message(help_text());
    if (first == "--help=markdown") return with_message(manual_text());
    if (first == "--help=man") return with_message(man_page());
    if (first == "--version") return with_message(version_line());
    if (arguments.size() > 1 && !second_words(first).empty() && asks_for_help(arguments[1])) {
      return with_message(help_text(first));
    }
  }
  const auto chosen = choose_command(arguments);
  const Command& command = *chosen.first;
  Options options;
  options.command = command.name;
  if (arguments.size() == chosen.second + 1 && arguments.back() == "--help=man") {
    return with_message(man_page(command));
  }
  options.chat.command = chosen.second > 0;
  if (command.set_defaults != nullptr) command.set_defaults(options);

  if (!given.empty() && given.front() == "run") name_model(command, arguments);
  Reader reader(command, arguments, chosen.second, options.chat.command);
  const auto names_config = [](const std::string& word) { return word.starts_with("--config"); };
  std::string config;
  if (std::any_of(arguments.begin(), arguments.end(), names_config)) {
    config = store_config(command, reader, options);
    if (!options.model.path.empty()) reader.set_model_known();
  }
  const bool read_all = reader.read(
      [&](const OptionRow& row, const OptionValue& value) { row.store(options, value); },
      [&](const std::string& word, bool literal) {
        const bool checked = !literal && word != "-" && !options.chat.prompt;
        if (checked && chosen.second == 0) check_prompt(word);
        if (checked && options.command == "chat") check_no_model("nvllm-launch chat", word);
        command.store_positional(options, word);
      });
  if (!read_all) return with_message(help_text(command));
  if (!config.empty() && same_file(config, options.generate.output)) {
    refuse("--output ", options.generate.output, ": is the --config file; pass another file");
  }
  if (command.check != nullptr) command.check(options);
  return options;
}

}  // namespace nvllm::launcher
