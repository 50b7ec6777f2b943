// The output of --help=man: man pages in roff, generated from the tables of options.
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/program.h"

namespace nvllm::launcher {
namespace {

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
  if (command.words != nullptr) text += str(" \\fI", escaped(command.words), "\\fR");
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
