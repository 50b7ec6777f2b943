// The command chat: one answer, a chat at a terminal, or prompts through a pipe.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "base/error.h"
#include "launcher/chat/abandonable_work.h"
#include "launcher/chat/chat_commands.h"
#include "launcher/chat/chat_session.h"
#include "launcher/chat/piped_input.h"
#include "launcher/chat/terminal/line_editor.h"
#include "launcher/cli/option_value.h"
#include "launcher/cli/options.h"
#include "launcher/cli/program.h"
#include "launcher/session/engine_session.h"
#include "launcher/session/text_io.h"
#include "launcher/session/user_cache.h"

namespace nvllm::launcher {
namespace {

using Then = CommandResult::Then;

// On the CPU, prompts are prefilled in steps of about this duration: between steps the engine
// receives Ctrl-C, and reports its progress.
constexpr double kPrefillStepS = 0.1;

// Where the prompts of a chat come from.
enum class ChatMode {
  prompt,  // given on the command line: one answer
  lines,   // each line of standard input is a separate prompt
  piped,   // standard input is a conversation
  terminal
};

ChatMode mode_of(const Options& options) {
  if (options.chat.prompt) return ChatMode::prompt;
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) return ChatMode::terminal;
  return options.chat.command ? ChatMode::piped : ChatMode::lines;
}

// "CPU, 2 cores", "2 x NVIDIA H200"
std::string device_of(const EngineSession& session) {
  const auto& ranks = session.info().ranks;
  const std::string& device = ranks.front().report.device;
  return ranks.size() == 1 ? device : str(ranks.size(), " x ", device);
}

// The output of /model.
std::string describe_model(const Options& options, const EngineSession& session) {
  const runtime::OpenModel& model = session.model();
  return str("model               ", options.model_name, "\npath                ", model.path,
             "\narchitecture        ", model.config.architecture, ", ", model.config.layers,
             " layers, ", name_of(model.dtype), "\nweights             ",
             format_bytes(session.info().weight_bytes), "\ndevice              ",
             device_of(session), "\ncontext             ", session.info().max_model_len, " tokens");
}

class Chat {
 public:
  Chat(const Options& options, const TextModel& model, EngineSession& session,
       AbandonableWork& text_work)
      : options_(options),
        model_(model),
        session_(session),
        chat_(options, model, session, text_work) {}

  void run(ChatMode mode) {
    if (mode == ChatMode::prompt) {
      count(chat_.ask(*options_.chat.prompt, {}));
      if (!log_enabled(LogLevel::info)) return;
      if (const std::string why = chat_.cut_off(); !why.empty()) print_line(session_, why);
      print_line(session_, totals_.last);
    } else if (mode == ChatMode::terminal) {
      at_terminal();
    } else if (mode == ChatMode::lines) {
      LineAnswers(options_, model_, session_).run([&] { check_alive(); });
    } else {
      over_pipe();
    }
  }

 private:
  void count(const StreamedAnswer& answer) {
    ++totals_.answers;
    totals_.tokens += answer.tokens();
    totals_.last = answer.statistics();
  }

  StreamedAnswer answer(Then how, const std::string& question, const ChatSession::Stop& stop) {
    if (how == Then::ask_again) return chat_.ask_again(stop);
    if (how == Then::go_on) return chat_.go_on(stop);
    return chat_.ask(question, stop);
  }

  // Runs a command and returns what to do next; errors are printed.
  Then command(ChatCommands& commands, const ChatLine& line) {
    try {
      const CommandResult result = commands.run(line);
      if (!result.text.empty()) print_line(session_, result.text);
      return result.then;
    } catch (const Error& error) {
      check_alive();
      print_line(session_, error.what());
      return Then::next;
    }
  }

  void over_pipe() {
    ChatCommands commands(chat_, totals_, {.model = describe_model(options_, session_)});
    LineReader lines("-");
    while (true) {
      const LineReader::Found found = lines.next(std::chrono::milliseconds(200));
      if (found == LineReader::Found::end) return;
      check_alive();
      if (found == LineReader::Found::nothing_yet) continue;
      if (lines.too_long()) {
        fail("line ", lines.number(), " is longer than ", format_bytes(LineReader::kMaxLine),
             "; pass shorter ones");
      }
      const std::string line(lines.line());
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const ChatLine read = read_chat_line(line);
      if (read.kind == ChatLine::Kind::text) {
        count(chat_.ask(line, {}));
        continue;
      }
      const Then then = command(commands, read);
      if (then == Then::leave) return;
      if (then != Then::next) answer_again(then);
    }
  }

  void answer_again(Then how) {
    try {
      count(answer(how, "", {}));
    } catch (const OutputClosed&) {
      throw;
    } catch (const Error& error) {
      check_alive();
      print_line(session_, error.what());
    }
  }

  void at_terminal() {
    LineEditor editor(STDIN_FILENO, STDOUT_FILENO, history(), complete_command);
    const EngineSession::ExitCallback terminal(session_, [&] { editor.give_terminal_back(); });
    const auto alive = [&] { check_alive(); };
    const auto confirm = [&](const std::string& question) {
      if (editor.read_answer(question, alive) != LineEditor::End::entered) return false;
      return editor.text() == "y" || editor.text() == "yes";
    };
    ChatCommands commands(chat_, totals_,
                          {.model = describe_model(options_, session_), .confirm = confirm});
    print_line(session_,
               str(options_.model_name, " on ", device_of(session_), ", context ", chat_.context(),
                   " tokens; /help shows what can be done, Ctrl-D leaves"));
    while (true) {
      const LineEditor::End end = editor.read("> ", alive);
      if (end == LineEditor::End::left) return;
      if (end == LineEditor::End::cancelled) continue;
      const std::string line = editor.text();
      if (line.find_first_not_of(" \n") == std::string::npos) continue;
      const ChatLine read = read_chat_line(line);
      const Then then = read.kind == ChatLine::Kind::text ? Then::next : command(commands, read);
      if (then == Then::leave) return;
      if (then != Then::next || read.kind == ChatLine::Kind::text) {
        at_terminal_answer(then, line, editor);
      }
    }
  }

  void at_terminal_answer(Then how, const std::string& line, LineEditor& editor) {
    try {
      const StreamedAnswer given = answer(how, line, [&] { return editor.interrupted(); });
      count(given);
      if (given.stopped_before_text()) {
        print_line(session_, kStopped);
        return;
      }
      print_line(session_, "(" + totals_.last + ")");
      if (const std::string why = chat_.cut_off(); !why.empty()) {
        print_line(session_, "(" + why + "; /continue goes on)");
      }
    } catch (const OutputClosed&) {
      throw;
    } catch (const Error& error) {
      check_alive();  // throws if the workers have ended, which ends the chat
      print_line(session_, error.what());
    }
  }

  // Inputs of earlier chats, unless history is disabled or unavailable. Only the folders of the
  // default file are created.
  History history() {
    const std::string path = options_.chat.history.value_or(chat_history_path(process_environment));
    if (path.empty()) return {};
    if (!options_.chat.history) {
      std::error_code ignored;  // a chat has no history then, which add() tells
      std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    }
    try {
      return History(path);
    } catch (const Error& error) {
      print_line(session_, error.what());
      return {};
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

// Rejects a --history in a folder that does not exist.
void check_history(const ChatOptions& chat) {
  if (!chat.history || chat.history->empty()) return;
  const std::filesystem::path folder = std::filesystem::path(*chat.history).parent_path();
  std::error_code ignored;
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return;
  refuse("--history ", *chat.history, ": there is no folder ", folder.string(),
         "; make it, or pass another file, or off");
}

}  // namespace

int run_chat(const Options& given, std::int64_t) {
  Options options = given;
  check_history(options.chat);
  if (options.chat.prompt) {
    options.chat.prompt = with_standard_input(*options.chat.prompt, STDIN_FILENO,
                                              [](const std::string& text) { log_info(text); });
  }
  std::optional<TextModel> model;
  SessionOptions session_settings = session_options(options);
  const ChatMode mode = mode_of(options);
  if (mode == ChatMode::prompt || mode == ChatMode::terminal) {
    session_settings.engine.prefill_step_s = kPrefillStepS;
  }
  session_settings.meanwhile = [&] {
    model = TextModel::open(options.model.path, options.text.chat_template,
                            options.text.special_tokens_in_messages);
    model->chat_template();  // throws now rather than after the first question
  };
  EngineSession session(session_settings);
  AbandonableWork text_work;
  std::optional<std::string> error;
  bool closed = false;
  try {
    Chat(options, *model, session, text_work).run(mode);
  } catch (const OutputClosed&) {
    closed = true;
  } catch (const Error& failure) {
    error = failure.what();
  }
  const int exit_code = session.finish(error);
  closed &= exit_code == kExitFine;
  // A thread is still busy with a stopped question, and uses objects that a return would destroy.
  if (text_work.busy()) ::_exit(closed ? kExitSignal + SIGPIPE : exit_code);
  if (closed) throw OutputClosed("");
  return exit_code;
}

}  // namespace nvllm::launcher
