#include "launcher/options.h"

#include <algorithm>
#include <utility>

#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

std::string general_help_hint(const std::string& command) {
  return command.empty() ? "nvllm-launch --help" : "nvllm-launch " + command + " --help";
}

[[noreturn]] void refuse_unknown(const char* kind, const std::string& given,
                                 const std::vector<std::string>& known,
                                 const std::string& command) {
  const std::string nearest = nearest_name(given, known);
  if (!nearest.empty()) refuse("unknown ", kind, " '", given, "'; did you mean '", nearest, "'?");
  refuse("unknown ", kind, " '", given, "'; see ", general_help_hint(command));
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> known;
  for (const Command& command : commands()) {
    if (command.name == name) return command;
    known.emplace_back(command.name);
  }
  if (name == "serve") refuse("serve: not yet; generate answers prompts from a file or a pipe");
  refuse_unknown("command", name, known, "");
}

// named: the command was; otherwise what stands for all may have been meant.
const OptionRow& find_row(const Command& command, const std::string& name, bool named) {
  std::vector<std::string> known = {"--help"};
  if (!named) known.emplace_back("--version");
  for (const OptionRow& row : command.rows) {
    if (row.name == name || (row.second_name != nullptr && row.second_name == name)) return row;
    known.emplace_back(row.name);
    if (row.second_name != nullptr) known.emplace_back(row.second_name);
  }
  refuse_unknown("option", name, known, command.name);
}

// Of the commands that share their first word: the second ones, "latency, startup or throughput"; empty:
// no command of two words begins with this one.
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

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      chat_options(),       generate_options(),      bench_latency_options(),
      bench_long_options(), bench_startup_options(), bench_throughput_options(),
      inspect_options(),    selftest_options(),      tokenize_options(),
      detokenize_options(), template_options(),
  };
  return all;
}

OptionRows join_rows(std::initializer_list<OptionRows> tables) {
  OptionRows all;
  for (const OptionRows& table : tables) all.insert(all.end(), table.begin(), table.end());
  return all;
}

OptionRow json_row(const char* help) {
  return {"--json", nullptr, nullptr,
          help,     nullptr, [](Options& options, const OptionValue&) { options.json = true; }};
}

OptionRow memory_report_row() {
  return {"--memory-report",
          nullptr,
          nullptr,
          "adds what memory every rank has taken, and for what",
          nullptr,
          [](Options& options, const OptionValue&) { options.memory_report = true; }};
}

namespace {

// Whether a first word that is no command is a prompt: unless it is nearly a command's name.
bool is_prompt(const std::string& word) {
  if (word == "serve") return false;
  if (word.find_first_of(" \t\n") != std::string::npos) return true;
  std::vector<std::string> known;
  for (const Command& command : commands()) known.emplace_back(command.name);
  return nearest_name(word, known).empty();
}

// The command, and how many arguments name it. 0: it is `chat`, with an option or a prompt at once.
std::pair<const Command*, std::size_t> choose_command(const std::vector<std::string>& arguments) {
  const std::string* const first = arguments.empty() ? nullptr : &arguments.front();
  const auto is_named = [&](const Command& command) {
    return first != nullptr && (*first == command.name || !second_words(*first).empty());
  };
  const bool named = std::any_of(commands().begin(), commands().end(), is_named);
  if (!named && (first == nullptr || first->starts_with('-') || is_prompt(*first))) {
    return {&find_command("chat"), 0};
  }
  if (const std::string seconds = second_words(*first); !seconds.empty()) {
    if (arguments.size() < 2) refuse(*first, ": pass ", seconds, " after it");
    return {&find_command(*first + ' ' + arguments[1]), 2};
  }
  return {&find_command(*first), 1};
}

// Stores the option at arguments[i] with its value, which may be the next argument.
void take_option(const Command& command, const std::vector<std::string>& arguments, std::size_t& i,
                 Options& options) {
  const std::string& argument = arguments[i];
  const std::size_t equals = argument.find('=');
  const std::string name = argument.substr(0, equals);
  const OptionRow& row = find_row(command, name, options.chat.command);
  if (row.value == nullptr) {
    if (equals != std::string::npos) refuse(name, " takes no value; pass it alone");
    row.store(options, OptionValue(name, ""));
  } else if (equals != std::string::npos) {
    row.store(options, OptionValue(name, std::string_view(argument).substr(equals + 1)));
  } else if (i + 1 < arguments.size()) {
    row.store(options, OptionValue(name, arguments[++i]));
  } else {
    refuse(name, " needs a value: ", name, ' ', row.value);
  }
}

// Stores an argument that is no option.
void take_word(const Command& command, const std::string& word, bool only_words, Options& options) {
  if (command.store_word == nullptr) {
    refuse("'", word, "': not an option; see ", general_help_hint(command.name));
  }
  for (const Command& other : commands()) {
    if (options.chat.command || only_words || word != other.name) continue;
    refuse("'", word, "': a command comes first: nvllm-launch ", word, " [OPTIONS]");
  }
  command.store_word(options, word);
}

Options with_message(std::string message) {
  Options options;
  options.message = std::move(message);
  return options;
}

bool asks_for_help(const std::string& argument) {
  return argument == "--help" || argument == "-h";
}

}  // namespace

Options parse_command_line(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    const std::string& first = arguments.front();
    if (asks_for_help(first) || first == "help") return with_message(help_text());
    if (first == "--version") return with_message(version_line());
    if (arguments.size() > 1 && !second_words(first).empty() && asks_for_help(arguments[1])) {
      return with_message(help_text(first));
    }
  }
  const auto chosen = choose_command(arguments);
  const Command& command = *chosen.first;
  Options options;
  options.command = command.name;
  options.chat.command = chosen.second > 0;

  bool only_words = false;  // after "--"
  for (std::size_t i = chosen.second; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (only_words || !argument.starts_with('-')) {
      take_word(command, argument, only_words, options);
    } else if (argument == "--" && command.store_word != nullptr) {
      only_words = true;
    } else if (asks_for_help(argument)) {
      return with_message(help_text(command));
    } else {
      take_option(command, arguments, i, options);
    }
  }
  if (command.check != nullptr) command.check(options);
  return options;
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance =
      std::max<std::size_t>(2, word.size() / 3) + 1;  // farther is another word
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

}  // namespace nvllm::launcher
