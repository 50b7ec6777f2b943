#include "launcher/chat/chat_commands.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/text.h"
#include "launcher/chat/chat_settings.h"
#include "launcher/cli/suggestions.h"
#include "launcher/session/text_table.h"

namespace nvllm::launcher {
namespace {

constexpr std::uintmax_t kMaxTalkBytes = 32 << 20;

using Then = CommandResult::Then;

std::string described(const Conversation& conversation) {
  const std::size_t forgotten = conversation.forgotten();
  return str(counted(conversation.messages().size(), "message"),
             forgotten > 0 ? str(", of which the model has forgotten ", forgotten) : "");
}

}  // namespace

const std::vector<CommandName>& command_names() {
  static const std::vector<CommandName> all = {
      {"/help", "", "shows this", "/?"},
      {"/show", "", "shows the model, the conversation and the settings"},
      {"/model", "", "shows the model"},
      {"/system", "[TEXT|-]", "shows the system message, sets it, or (-) removes it"},
      {"/set", "[NAME [VALUE]]", "shows the settings or sets one: /set temperature 0.7"},
      {"/regen", "", "asks the last question again"},
      {"/continue", "", "goes on with an answer that was cut off or stopped"},
      {"/clear", "", "forgets the conversation, but not the system message", "/reset"},
      {"/save", "FILE", "writes the whole conversation to a file, as JSON"},
      {"/load", "FILE", "continues one that was saved"},
      {"/stats", "", "shows the figures of the last answer, and of all"},
      {"/bye", "", "leaves; so does Ctrl-D", "/exit"},
      {"/quit", "", "the same"},
  };
  return all;
}

std::string commands_help() {
  std::string text;
  for (const CommandName& command : command_names()) {
    std::string names = command.name;
    if (command.alias != nullptr) names += str(", ", command.alias);
    if (*command.argument != '\0') names += str(' ', command.argument);
    names.resize(std::max<std::size_t>(names.size() + 2, 22), ' ');
    text += names + command.help + '\n';
  }
  return text +
         "Alt-Enter, Ctrl-J or a backslash at the end of a line begin a new one. Ctrl-C\n"
         "stops an answer, Ctrl-R searches what was entered before. A space before a\n"
         "slash makes a text of it.";
}

ChatLine read_chat_line(const std::string& line) {
  if (!line.starts_with('/')) return {};
  const std::size_t end = std::min(line.find_first_of(" \n"), line.size());
  const std::string name = line.substr(0, end);
  std::string argument = line.substr(end);
  argument.erase(0, argument.find_first_not_of(" \n"));
  argument.erase(argument.find_last_not_of(" \n") + 1);
  std::vector<std::string> known;
  for (const CommandName& command : command_names()) {
    const bool called = name == command.name || (command.alias != nullptr && name == command.alias);
    // Only a system message may have several lines; other texts of several lines are not commands.
    const bool one_line = argument.find('\n') == std::string::npos || name == "/system";
    if (called && one_line) return {ChatLine::Kind::command, command.name, argument};
    known.emplace_back(command.name + 1);
    if (command.alias != nullptr) known.emplace_back(command.alias + 1);
  }
  const std::string meant = mistyped_name(std::string_view(name).substr(1), known);
  if (meant.empty() || line.find('\n') != std::string::npos) return {};
  return {ChatLine::Kind::misspelt, "/" + meant, argument};
}

std::vector<std::string> complete_command(const std::string& text) {
  std::vector<std::string> all;
  if (!text.starts_with('/')) return all;
  const auto offer = [&](const std::string& input) {
    if (input.starts_with(text)) all.push_back(input);
  };
  for (const CommandName& command : command_names()) {
    const char* const behind = *command.argument == '\0' ? "" : " ";
    offer(str(command.name, behind));
    if (command.alias != nullptr) offer(str(command.alias, behind));
  }
  for (const std::string& name : ChatSettings::names()) {
    if (text.starts_with("/set ")) offer("/set " + name + " ");
  }
  return all;
}

std::string expand_home(const std::string& path) {
  const char* const home = std::getenv("HOME");
  const bool own = path == "~" || path.starts_with("~/");
  return own && home != nullptr ? home + path.substr(1) : path;
}

CommandResult ChatCommands::run(const ChatLine& line) {
  if (line.kind == ChatLine::Kind::misspelt) {
    fail("no such command; did you mean ", line.name, "? A space before it makes a text of it");
  }
  const std::string& name = line.name;
  const std::string& argument = line.argument;
  if (name == "/help") return {commands_help()};
  if (name == "/bye" || name == "/quit") return {"", Then::leave};
  if (name == "/regen") return {"", Then::ask_again};
  if (name == "/continue") return {"", Then::go_on};
  if (name == "/clear") {
    chat_.conversation().reset();
    chat_.forget_last_answer();
    return {"the conversation is empty again"};
  }
  if (name == "/model") return {model(argument)};
  if (name == "/show") return {show()};
  if (name == "/system") return {system(argument)};
  if (name == "/set") return {set(argument)};
  if (name == "/save") return {save(argument)};
  if (name == "/load") return {load(argument)};
  return {stats()};
}

std::string ChatCommands::model(const std::string& argument) const {
  if (argument.empty()) return setup_.model;
  fail("/model ", argument, ": a chat keeps its model; leave, and pass --model ", argument,
       "; /save and /load take the conversation along");
}

std::string ChatCommands::show() const {
  const std::string system = chat_.conversation().system();
  return str(setup_.model, "\nconversation        ", described(chat_.conversation()),
             system.empty() ? "" : "\nsystem message      " + system, '\n', settings_.show());
}

std::string ChatCommands::system(const std::string& argument) {
  if (argument.empty()) {
    const std::string now = chat_.conversation().system();
    return now.empty() ? "there is no system message; /system TEXT sets one" : now;
  }
  chat_.conversation().set_system(argument == "-" ? "" : argument);
  return argument == "-" ? "there is no system message any more" : "the system message is set";
}

std::string ChatCommands::set(const std::string& argument) {
  if (argument.empty()) return settings_.show();
  const std::size_t space = argument.find(' ');
  const std::string name = argument.substr(0, space);
  if (space == std::string::npos) return settings_.show(name);
  return settings_.set(name, argument.substr(argument.find_first_not_of(' ', space)));
}

std::string ChatCommands::save(const std::string& argument) {
  if (argument.empty()) fail("/save needs a file's name");
  const std::string path = expand_home(argument);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail("/save ", path, ": is a folder");
  if (std::filesystem::exists(path, ignored)) {
    if (!setup_.confirm) fail("/save ", path, ": is there already; pass another name");
    if (!setup_.confirm(path + " is there already; overwrite it? [y/N] ")) return "not saved";
  }
  // An existing file is kept until the new one is written completely.
  const bool replaces = std::filesystem::is_regular_file(path, ignored);
  const std::string written = replaces ? path + ".new" : path;
  std::ofstream file(written, std::ios::binary);
  file << chat_.conversation().to_json();
  file.close();
  if (!file) fail_errno("/save ", written);
  std::error_code error;
  if (replaces) std::filesystem::rename(written, path, error);
  if (error) fail("/save ", path, ": ", error.message());
  return str("saved ", chat_.conversation().messages().size(), " messages to ", path);
}

std::string ChatCommands::load(const std::string& argument) {
  if (argument.empty()) fail("/load needs a file's name");
  const std::string path = expand_home(argument);
  // Checked first, because opening a pipe would wait for its writer.
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    fail("/load ", path, ": is a folder; pass a file that /save wrote");
  }
  if (!std::filesystem::is_regular_file(path, ignored)) fail("/load ", path, ": no such file");
  if (std::filesystem::file_size(path, ignored) > kMaxTalkBytes)
    fail("/load ", path, ": more than 32 MiB; no talk is that long");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_errno("/load ", path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  with_context("/load " + path, [&] { chat_.conversation().from_json(text); });
  chat_.forget_last_answer();
  return str("loaded ", chat_.conversation().messages().size(), " messages");
}

std::string ChatCommands::stats() const {
  if (totals_.answers == 0) return "no answer yet";
  return str(totals_.last, "\n", counted(totals_.answers, "answer"), ", ", totals_.tokens,
             " tokens in all");
}

}  // namespace nvllm::launcher
