// What the tables of options say to users: the output of --help and --version, the generated part
// of the manual, and man pages in roff (--help=man).
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/program.h"
#include "launcher/cli/suggestions.h"

namespace nvllm::launcher {
namespace {

constexpr const char* kExitCodeHelp =
    "Exit codes\n"
    "  0        success\n"
    "  1        the run failed; the last line on standard error says why\n"
    "  2        wrong command line, or more than this machine has; nothing was started\n"
    "  3        a worker died\n"
    "  4        a worker was alive but stuck for longer than --step-timeout\n"
    "  128 + S  stopped by signal S: 130 for SIGINT, 143 for SIGTERM; a second SIGINT\n"
    "           does not wait for the workers to end by themselves\n";

constexpr const char* kOptionsTitle = "Options (--name value or --name=value)\n";

// "  --tp N, --tensor-parallel-size N", with its help and default below.
std::string help_of(const OptionRow& row) {
  const std::string value = row.value != nullptr ? str(' ', row.value) : "";
  std::string text = str("  ", row.name, value);
  if (const std::string_view brief = short_name(row.name); !brief.empty())
    text += str(", ", brief, value);
  if (row.second_name != nullptr) text += str(", ", row.second_name, value);
  text += "\n      ";
  for (const char* c = row.help; *c != '\0'; ++c) {
    text += *c;
    if (*c == '\n') text += "      ";
  }
  if (row.fallback != nullptr) text += str("\n      default: ", row.fallback);
  return text + '\n';
}

std::string help_line(const Command& command) {
  const std::string name = command.name;
  return str("  ", name, std::string(18 - name.size(), ' '), command.summary, '\n');
}

std::string title_of(const Command& command) {
  std::string text = str("nvllm-launch ", command.name, " ", command.summary, ".\n\n");
  if (command.positional == nullptr) return text;
  return text + str("  nvllm-launch ", command.name, " [OPTIONS] ", command.positional, "\n\n");
}

bool same_group(const OptionRow& row, const char* group) {
  if (row.group == nullptr || group == nullptr) return row.group == group;
  return std::string_view(row.group) == group;
}

// Groups of options that several commands share, in the order of the help.
std::vector<OptionRows> shared_groups() {
  return {model_rows(), sampling_rows(), api_rows(), engine_rows(), group_rows(), {config_row()}};
}

std::string markdown(const std::string& title, const std::string& text) {
  return str("## ", title, "\n\n```\n", text, "```\n\n");
}

// A command's options of one shared group, for the manual: "Engine", "Model: --model only",
// "Sampling without --n". Rows that differ from the shared ones are appended to `own`.
std::string use_of_group(const Command& command, const OptionRows& group, std::string& own) {
  std::string title = group.front().group;
  title = title.substr(0, title.find(" ("));
  std::string has, lacks;
  for (const OptionRow& shared : group) {
    const auto same_name = [&](const OptionRow& row) {
      return std::string_view(row.name) == shared.name && same_group(row, shared.group);
    };
    const auto found = std::find_if(command.rows.begin(), command.rows.end(), same_name);
    std::string& list = found == command.rows.end() ? lacks : has;
    list += str(list.empty() ? "" : ", ", shared.name);
    if (found == command.rows.end()) continue;
    if (help_of(*found) != help_of(shared)) own += help_of(*found);
  }
  if (has.empty()) return "";
  if (lacks.empty()) return str("  ", title, '\n');
  if (has.size() < lacks.size()) return str("  ", title, ": ", has, " alone\n");
  return str("  ", title, ", without ", lacks, '\n');
}

// The options of a command besides the shared ones.
std::string manual_of(const Command& command) {
  std::string own, groups;
  for (const OptionRow& row : command.rows) {
    if (same_group(row, nullptr)) own += help_of(row);
  }
  for (const OptionRows& group : shared_groups()) groups += use_of_group(command, group, own);
  return str(title_of(command), own.empty() ? "" : kOptionsTitle, own, own.empty() ? "" : "\n",
             "Options that it shares with other commands\n", groups);
}

// Escapes a text so that roff interprets none of it. Hyphens stay hyphens, which can be searched
// and copied.
std::string escaped(std::string_view text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    line_begins = c == '\n';
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string heading(std::string_view title) {
  std::string text = ".SH ";
  for (const char c : title) text += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return text + '\n';
}

// "nvllm-launch-bench-latency"
std::string page_name(const Command& command) {
  std::string name = str("nvllm-launch-", command.name);
  for (char& c : name) {
    if (c == ' ') c = '-';
  }
  return name;
}

// title: in bold, as in "\fB\-\-tp\fR \fIN\fR".
std::string tagged(const std::string& title, const std::string& body) {
  return str(".TP\n", title, '\n', body, '\n');
}

std::string bold(std::string_view text) {
  return str("\\fB", escaped(text), "\\fR");
}

std::string name_and_value(const char* name, const OptionRow& row) {
  if (row.value == nullptr) return bold(name);
  return str(bold(name), " \\fI", escaped(row.value), "\\fR");
}

std::string option(const OptionRow& row) {
  std::string title = name_and_value(row.name, row);
  if (row.second_name != nullptr) title += ", " + name_and_value(row.second_name, row);
  std::string body = escaped(row.help);
  if (row.fallback != nullptr) body += str("\n.br\nDefault: ", escaped(row.fallback));
  return tagged(title, body);
}

std::string beginning(const std::string& name, std::string_view summary) {
  return str(".TH ", escaped(name), " 1 \"\" \"nvllm ", kVersion, "\"\n", heading("name"),
             escaped(name), " \\- ", escaped(summary), '\n');
}

// Preformatted help text.
std::string as_it_is(std::string_view text) {
  return str(".nf\n", escaped(text), ".fi\n");
}

std::string see_also(const std::string& pages) {
  return heading("see also") + pages + '\n';
}

std::string reference(const std::string& page) {
  return str(bold(page), "(1)");
}

}  // namespace

std::string version_line() {
  const std::string_view label = kBuildLabel;
  const bool labelled = !label.empty() && label != "redacted";
  return str("nvllm ", kVersion, " (", labelled ? label : "", labelled ? "; " : "",
             NVLLM_BUILT_WITH, ")\n");
}

std::string help_text() {
  std::string text =
      "nvllm-launch runs large language models on the GPUs of this machine, or on its CPU.\n"
      "\n"
      "  nvllm-launch [OPTIONS] PROMPT    answers it; text on standard input is joined to it\n"
      "  nvllm-launch [OPTIONS]           opens a chat; not on a terminal, answers each line of\n"
      "                                   standard input; options are those of chat\n"
      "  nvllm-launch COMMAND [OPTIONS]\n"
      "  nvllm-launch help COMMAND        or COMMAND --help\n"
      "  nvllm-launch --version\n"
      "\n"
      "Examples\n"
      "  nvllm-launch \"Why is the sky blue?\"\n"
      "  nvllm-launch \"Summarise this\" <report.txt\n"
      "  nvllm-launch run Qwen/Qwen3-4B\n"
      "  nvllm-launch serve Qwen/Qwen3-8B --tp 2 --port 8000\n"
      "  nvllm-launch generate --input prompts.jsonl --output answers.jsonl\n"
      "\n"
      "Common options (nvllm-launch chat --help has all)\n"
      "  -m, --model MODEL              a folder, a .gguf file, or a name such as Qwen/Qwen3-4B\n"
      "  -tp, --tp N                    over how many GPUs it is split\n"
      "  -n, --max-tokens N             the longest answer\n"
      "  -c, --max-model-len N          the longest sequence, prompt and answer together\n"
      "  --temperature T                0: always the most likely token\n"
      "\n"
      "Commands\n";
  for (const Command& command : commands()) text += help_line(command);
  return text + "\n" + kExitCodeHelp;
}

std::string help_text(const std::string& first_word) {
  std::string text =
      str("nvllm-launch ", first_word, " has several commands, each with its own --help.\n\n");
  for (const Command& command : commands()) {
    if (std::string_view(command.name).starts_with(first_word + ' ')) text += help_line(command);
  }
  return text;
}

std::string help_text(const Command& command) {
  std::string text = title_of(command) + kOptionsTitle;
  for (const OptionRow& row : command.rows) {
    if (same_group(row, nullptr)) text += help_of(row);
  }
  for (const OptionRows& group : shared_groups()) {
    std::string of_group;
    for (const OptionRow& row : command.rows) {
      if (same_group(row, group.front().group)) of_group += help_of(row);
    }
    if (!of_group.empty()) text += str('\n', group.front().group, '\n', of_group);
  }
  return text + "\n" + kExitCodeHelp;
}

std::string manual_text() {
  std::string text = markdown("nvllm-launch --help", help_text());
  std::string shared = kOptionsTitle;
  for (const OptionRows& group : shared_groups()) {
    shared += str('\n', group.front().group, '\n');
    for (const OptionRow& row : group) shared += help_of(row);
  }
  text += markdown("Options that several commands share", shared);
  for (const Command& command : commands()) {
    text += markdown(str("nvllm-launch ", command.name), manual_of(command));
  }
  return text;
}

std::string man_page() {
  std::string text = beginning("nvllm-launch", "runs large language models on this machine");
  const std::string help = help_text();
  const std::size_t list = help.find("Commands\n");
  text += heading("synopsis") + as_it_is(help.substr(0, list)) + heading("commands");
  std::string pages;
  for (const Command& command : commands()) {
    text += tagged(bold(command.name), escaped(command.summary));
    pages += str(pages.empty() ? "" : ",\n", reference(page_name(command)));
  }
  constexpr std::string_view kCodes = "Exit codes\n";
  text += heading("exit codes") + as_it_is(help.substr(help.find(kCodes) + kCodes.size()));
  return text + see_also(pages);
}

std::string man_page(const Command& command) {
  std::string text = beginning(page_name(command), command.summary);
  text += str(heading("synopsis"), bold(str("nvllm-launch ", command.name)), " [\\fIOPTIONS\\fR]");
  if (command.positional != nullptr) text += str(" \\fI", escaped(command.positional), "\\fR");
  text += '\n' + heading("options");
  text += "An option is written \\-\\-name value or \\-\\-name=value.\n";
  // The options by group, in the order in which the groups first occur.
  std::vector<std::pair<std::string, std::string>> groups;
  for (const OptionRow& row : command.rows) {
    if (row.group == nullptr) {
      text += option(row);
      continue;
    }
    const auto same = [&](const auto& group) { return group.first == row.group; };
    const auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) {
      groups.emplace_back(row.group, option(row));
    } else {
      found->second += option(row);
    }
  }
  for (const auto& [name, options] : groups) text += str(".SS ", escaped(name), '\n', options);
  return text + see_also(reference("nvllm-launch"));
}

}  // namespace nvllm::launcher
