#include "launcher/chat/chat_command.h"

#include <unistd.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "launcher/chat/chat_commands.h"
#include "launcher/chat/line_answers.h"
#include "launcher/chat/line_editor.h"
#include "launcher/chat/talk.h"
#include "launcher/engine_session.h"
#include "launcher/exit_code.h"
#include "launcher/generate/line_reader.h"
#include "launcher/standard_output.h"

namespace nvllm::launcher {
namespace {

// What the talk consists of.
enum class Manner {
  prompt,  // of the command line: one answer
  lines,   // each line of standard input is a prompt of its own
  piped,   // standard input is a conversation
  terminal
};

Manner manner_of(const Options& options) {
  if (options.chat.prompt) return Manner::prompt;
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) return Manner::terminal;
  return options.chat.command ? Manner::piped : Manner::lines;
}

class Chat {
 public:
  Chat(const Options& options, const TextModel& model, EngineSession& session)
      : options_(options), model_(model), session_(session), talk_(options, model, session) {}

  void run(Manner manner) {
    if (manner == Manner::prompt) {
      answer(*options_.chat.prompt, {});
      if (log_enabled(LogLevel::info)) tell(session_, totals_.last);
    } else if (manner == Manner::terminal) {
      at_terminal();
    } else if (manner == Manner::lines) {
      LineAnswers(options_, model_, session_).run([&] { check_alive(); });
    } else {
      over_lines();
    }
  }

 private:
  void answer(const std::string& question, const std::function<bool()>& stop) {
    const StreamedAnswer answer = talk_.ask(question, stop);
    ++totals_.answers;
    totals_.tokens += answer.tokens;
    totals_.last = answer.statistics();
  }

  // True: it was to leave.
  bool command(const std::string& line) {
    try {
      const CommandResult result = run_chat_command(line, talk_, totals_);
      if (!result.text.empty()) tell(session_, result.text);
      return result.exit;
    } catch (const Error& error) {
      tell(session_, error.what());
      return false;
    }
  }

  void over_lines() {
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
    tell(session_, "/help shows what can be done, Ctrl-D leaves");
    while (true) {
      const LineEditor::End end = editor.read("> ", [&] { check_alive(); });
      if (end == LineEditor::End::left) return;
      if (end == LineEditor::End::given_up) continue;
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
      tell(session_, "(" + totals_.last + ")");
    } catch (const OutputClosed&) {
      throw;
    } catch (const Error& error) {
      check_alive();  // what ends the run is not the answer's own matter
      tell(session_, error.what());
    }
  }

  // The supervisor has said why, if the group was ended.
  void check_alive() {
    if (session_.workers().member().group().aborted()) fail("the workers have ended");
  }

  const Options& options_;
  const TextModel& model_;
  EngineSession& session_;
  Talk talk_;
  ChatTotals totals_;
};

}  // namespace

int run_chat(const Options& options, std::int64_t) {
  std::optional<TextModel> model;
  SessionOptions session_is = session_options(options);
  session_is.meanwhile = [&] {
    model = TextModel::open(options.model.path, options.text.chat_template);
    model->chat_template();  // better told now than after the first question
  };
  EngineSession session(session_is);
  std::optional<std::string> error;
  bool closed = false;
  try {
    Chat(options, *model, session).run(manner_of(options));
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
