#include "launcher/chat/chat_commands.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
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
  const std::string& words = line.words;
  if (name == "/help") return {commands_help()};
  if (name == "/bye" || name == "/quit") return {"", Then::leave};
  if (name == "/regen") return {"", Then::ask_again};
  if (name == "/continue") return {"", Then::go_on};
  if (name == "/clear") {
    chat_.conversation().reset();
    chat_.forget_last_answer();
    return {"the conversation is empty again"};
  }
  if (name == "/model") return {model(words)};
  if (name == "/show") return {show()};
  if (name == "/system") return {system(words)};
  if (name == "/set") return {set(words)};
  if (name == "/save") return {save(words)};
  if (name == "/load") return {load(words)};
  return {stats()};
}

std::string ChatCommands::model(const std::string& words) const {
  if (words.empty()) return setup_.model;
  fail("/model ", words, ": a chat keeps its model; leave, and pass --model ", words,
       "; /save and /load take the conversation along");
}

std::string ChatCommands::show() const {
  const std::string system = chat_.conversation().system();
  return str(setup_.model, "\nconversation        ", described(chat_.conversation()),
             system.empty() ? "" : "\nsystem message      " + system, '\n', settings_.show());
}

std::string ChatCommands::system(const std::string& words) {
  if (words.empty()) {
    const std::string now = chat_.conversation().system();
    return now.empty() ? "there is no system message; /system TEXT sets one" : now;
  }
  chat_.conversation().set_system(words == "-" ? "" : words);
  return words == "-" ? "there is no system message any more" : "the system's message is set";
}

std::string ChatCommands::set(const std::string& words) {
  if (words.empty()) return settings_.show();
  const std::size_t space = words.find(' ');
  const std::string name = words.substr(0, space);
  if (space == std::string::npos) return settings_.show(name);
  return settings_.set(name, words.substr(words.find_first_not_of(' ', space)));
}

std::string ChatCommands::save(const std::string& words) {
  if (words.empty()) fail("/save needs a file's name");
  const std::string path = expand_home(words);
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

std::string ChatCommands::load(const std::string& words) {
  if (words.empty()) fail("/load needs a file's name");
  const std::string path = expand_home(words);
  // Checked first, because opening a pipe would wait for its writer.
  std::error_code ignored;
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
