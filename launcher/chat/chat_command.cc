// The command chat: one answer, a chat at a terminal, or prompts through a pipe.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "launcher/chat/chat_session.h"
#include "launcher/chat/line_answers.h"
#include "launcher/chat/prompt_input.h"
#include "launcher/chat/terminal.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/nearest_name.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/program.h"
#include "launcher/session/engine_session.h"
#include "launcher/session/text_io.h"

namespace nvllm::launcher {
namespace {

// Totals of the chat so far.
struct ChatTotals {
  std::int64_t answers = 0, tokens = 0;
  std::string last;  // statistics of the last answer
};

struct CommandResult {
  std::string text;  // to be shown
  bool exit = false;
};

constexpr const char* kHelp =
    "/help               shows this\n"
    "/reset              forgets the conversation, but not the system's message\n"
    "/system [TEXT]      sets the system's message, or removes it\n"
    "/set [NAME VALUE]   sets an option of sampling: /set temperature 0.7; without a name: "
    "lists them\n"
    "/save FILE          writes the conversation to a file, as JSON\n"
    "/load FILE          continues one that was saved\n"
    "/stats              statistics of the last answer, and of all\n"
    "/exit               leaves; so does Ctrl-D\n"
    "Alt-Enter, Ctrl-J or a backslash at the end of a line begin a new one. Ctrl-C stops an "
    "answer.";

std::string set_option(const std::string& words, ChatSession& chat) {
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
  runtime::SamplingParams changed = chat.sampling();
  apply_sampling(options.sampling, changed);
  runtime::check_sampling_params(changed);
  chat.sampling() = changed;
  return str(name, " is ", value);
}

std::string save(const std::string& path, ChatSession& chat) {
  if (path.empty()) fail("/save needs a file's name");
  std::ofstream file(path, std::ios::binary);
  file << chat.conversation().to_json();
  file.close();
  if (!file) fail_errno("/save ", path);
  return str("saved ", chat.conversation().messages().size(), " messages to ", path);
}

std::string load(const std::string& path, ChatSession& chat) {
  if (path.empty()) fail("/load needs a file's name");
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) fail("/load ", path, ": no such file");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  with_context("/load " + path, [&] { chat.conversation().from_json(text); });
  return str("loaded ", chat.conversation().messages().size(), " messages");
}

// Runs a line that begins with a slash. Throws an Error, which is to be shown, if it cannot.
CommandResult run_chat_command(const std::string& line, ChatSession& chat,
                               const ChatTotals& totals) {
  const std::size_t space = line.find_first_of(" \n");
  const std::string name = line.substr(0, space);
  std::string words = space == std::string::npos ? "" : line.substr(space + 1);
  words.erase(words.find_last_not_of(" \n") + 1);
  if (name == "/help") return {kHelp};
  if (name == "/exit" || name == "/quit") return {"", true};
  if (name == "/reset") {
    chat.conversation().reset();
    return {"the conversation is empty again"};
  }
  if (name == "/system") {
    chat.conversation().set_system(words);
    return {words.empty() ? "there is no system message any more" : "the system's message is set"};
  }
  if (name == "/set") return {set_option(words, chat)};
  if (name == "/save") return {save(words, chat)};
  if (name == "/load") return {load(words, chat)};
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

// What the chat consists of.
enum class ChatMode {
  prompt,  // of the command line: one answer
  lines,   // each line of standard input is a prompt of its own
  piped,   // standard input is a conversation
  terminal
};

ChatMode mode_of(const Options& options) {
  if (options.chat.prompt) return ChatMode::prompt;
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) return ChatMode::terminal;
  return options.chat.command ? ChatMode::piped : ChatMode::lines;
}

class Chat {
 public:
  Chat(const Options& options, const TextModel& model, EngineSession& session)
      : options_(options), model_(model), session_(session), chat_(options, model, session) {}

  void run(ChatMode mode) {
    if (mode == ChatMode::prompt) {
      answer(*options_.chat.prompt, {});
      if (log_enabled(LogLevel::info)) print_line(session_, totals_.last);
    } else if (mode == ChatMode::terminal) {
      at_terminal();
    } else if (mode == ChatMode::lines) {
      LineAnswers(options_, model_, session_).run([&] { check_alive(); });
    } else {
      over_pipe();
    }
  }

 private:
  void answer(const std::string& question, const std::function<bool()>& stop) {
    const StreamedAnswer answer = chat_.ask(question, stop);
    ++totals_.answers;
    totals_.tokens += answer.tokens;
    totals_.last = answer.statistics();
  }

  // True if the command ends the chat.
  bool command(const std::string& line) {
    try {
      const CommandResult result = run_chat_command(line, chat_, totals_);
      if (!result.text.empty()) print_line(session_, result.text);
      return result.exit;
    } catch (const Error& error) {
      print_line(session_, error.what());
      return false;
    }
  }

  void over_pipe() {
    LineReader lines("-");
    while (true) {
      const LineReader::Found found = lines.next(std::chrono::milliseconds(200));
      if (found == LineReader::Found::end) return;
      check_alive();
      if (found == LineReader::Found::nothing_yet) continue;
      const std::string line(lines.line());
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      if (line.front() == '/') {
        if (command(line)) return;
        continue;
      }
      answer(line, {});
    }
  }

  void at_terminal() {
    LineEditor editor(STDIN_FILENO, STDOUT_FILENO);
    print_line(session_, "/help shows what can be done, Ctrl-D leaves");
    while (true) {
      const LineEditor::End end = editor.read("> ", [&] { check_alive(); });
      if (end == LineEditor::End::left) return;
      if (end == LineEditor::End::cancelled) continue;
      const std::string& line = editor.text();
      if (line.find_first_not_of(" \n") == std::string::npos) continue;
      if (line.front() == '/') {
        if (command(line)) return;
        continue;
      }
      at_terminal_answer(line, editor);
    }
  }

  void at_terminal_answer(const std::string& line, LineEditor& editor) {
    try {
      answer(line, [&] { return editor.interrupted(); });
      print_line(session_, "(" + totals_.last + ")");
    } catch (const OutputClosed&) {
      throw;
    } catch (const Error& error) {
      check_alive();  // throws if the workers have ended: then the chat is over
      print_line(session_, error.what());
    }
  }

  // The supervisor has printed the reason if the group was aborted.
  void check_alive() {
    if (session_.workers().member().group().aborted()) fail("the workers have ended");
  }

  const Options& options_;
  const TextModel& model_;
  EngineSession& session_;
  ChatSession chat_;
  ChatTotals totals_;
};

}  // namespace

int run_chat(const Options& given, std::int64_t) {
  Options options = given;
  if (options.chat.prompt) {
    options.chat.prompt = with_standard_input(*options.chat.prompt, STDIN_FILENO,
                                              [](const std::string& text) { log_info(text); });
  }
  std::optional<TextModel> model;
  SessionOptions session_settings = session_options(options);
  session_settings.meanwhile = [&] {
    model = TextModel::open(options.model.path, options.text.chat_template);
    model->chat_template();  // throws now rather than after the first question
  };
  EngineSession session(session_settings);
  std::optional<std::string> error;
  bool closed = false;
  try {
    Chat(options, *model, session).run(mode_of(options));
  } catch (const OutputClosed&) {
    closed = true;
  } catch (const Error& failure) {
    error = failure.what();
  }
  const int exit_code = session.finish(error);
  if (closed && exit_code == kExitFine) throw OutputClosed("");
  return exit_code;
}

}  // namespace nvllm::launcher
