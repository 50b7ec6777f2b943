#include "launcher/chat/chat_commands.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

constexpr const char* kHelp =
    "/help               this\n"
    "/reset              forgets the conversation, but not the system's message\n"
    "/system [TEXT]      sets the system's message, or takes it away\n"
    "/set [NAME VALUE]   sets an option of sampling: /set temperature 0.7; without a name: which "
    "there are\n"
    "/save FILE          writes the conversation to a file, as JSON\n"
    "/load FILE          goes on with one that was saved\n"
    "/stats              figures of the last answer, and of all\n"
    "/exit               leaves; so does Ctrl-D\n"
    "Alt-Enter, Ctrl-J or a backslash at the end of a line begin a new one. Ctrl-C stops an "
    "answer.";

std::string set_option(const std::string& words, Talk& talk) {
  const std::size_t space = words.find(' ');
  std::string name = words.substr(0, space);
  std::vector<std::string> known;
  for (const OptionRow& row : chat_sampling_rows()) {
    if (row.value != nullptr) known.emplace_back(row.name + 2);
  }
  if (name.empty()) {
    std::string list = "options:";
    for (const std::string& each : known) list += " " + each;
    return list;
  }
  std::replace(name.begin(), name.end(), '_', '-');
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    const std::string nearest = nearest_name(name, known);
    fail("/set ", name, ": no such option; ",
         nearest.empty() ? "/set alone shows all" : "did you mean " + nearest + "?");
  }
  if (space == std::string::npos) fail("/set ", name, " needs a value");
  Options options;
  const std::string given = "--" + name, value = words.substr(space + 1);
  for (const OptionRow& row : chat_sampling_rows()) {
    if (row.name == given) row.store(options, OptionValue(given, value));
  }
  runtime::SamplingParams changed = talk.sampling();
  apply_sampling(options.sampling, changed);
  runtime::check_sampling_params(changed);
  talk.sampling() = changed;
  return str(name, " is ", value);
}

std::string save(const std::string& path, Talk& talk) {
  if (path.empty()) fail("/save needs a file's name");
  std::ofstream file(path, std::ios::binary);
  file << talk.conversation().to_json();
  file.close();
  if (!file) fail_errno("/save ", path);
  return str("saved ", talk.conversation().messages().size(), " messages to ", path);
}

std::string load(const std::string& path, Talk& talk) {
  if (path.empty()) fail("/load needs a file's name");
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) fail("/load ", path, ": no such file");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  with_context("/load " + path, [&] { talk.conversation().from_json(text); });
  return str("loaded ", talk.conversation().messages().size(), " messages");
}

}  // namespace

CommandResult run_chat_command(const std::string& line, Talk& talk, const ChatTotals& totals) {
  const std::size_t space = line.find_first_of(" \n");
  const std::string name = line.substr(0, space);
  std::string words = space == std::string::npos ? "" : line.substr(space + 1);
  words.erase(words.find_last_not_of(" \n") + 1);
  if (name == "/help") return {kHelp};
  if (name == "/exit" || name == "/quit") return {"", true};
  if (name == "/reset") {
    talk.reset();
    return {"the conversation begins anew"};
  }
  if (name == "/system") {
    talk.conversation().set_system(words);
    return {words.empty() ? "no message of the system any more" : "the system's message is set"};
  }
  if (name == "/set") return {set_option(words, talk)};
  if (name == "/save") return {save(words, talk)};
  if (name == "/load") return {load(words, talk)};
  if (name == "/stats") {
    if (totals.answers == 0) return {"no answer yet"};
    return {str(totals.last, "\n", totals.answers, totals.answers == 1 ? " answer, " : " answers, ",
                totals.tokens, " tokens in all")};
  }
  const std::string nearest = nearest_name(
      name, {"/help", "/reset", "/save", "/load", "/system", "/set", "/stats", "/exit"});
  fail(name, ": no such command; ",
       nearest.empty() ? "/help shows all" : "did you mean " + nearest + "?");
}

}  // namespace nvllm::launcher
