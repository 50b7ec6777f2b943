// The line editor in a pseudo-terminal: keys typed, resulting inputs, and the screen.
#include "launcher/chat/terminal/line_editor.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "launcher/chat/terminal/testing/screen.h"

namespace nvllm::launcher {
namespace {

using testing::Screen;
using End = LineEditor::End;

// A pseudo-terminal with an editor at one end; a thread takes what it shows at the other.
class Typist {
 public:
  Typist(unsigned short rows, unsigned short columns, const std::vector<std::string>& history = {},
         LineEditor::Complete complete = {})
      : screen_(rows, columns) {
    winsize window{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::openpty(&ours_, &theirs_, nullptr, nullptr, &window) == 0);
    History entries;
    for (const std::string& entry : history) entries.add(entry);
    editor_ =
        std::make_unique<LineEditor>(theirs_, theirs_, std::move(entries), std::move(complete));
    reader_ = std::jthread([this](const std::stop_token& stop) { take(stop); });
  }
  ~Typist() {
    editor_.reset();
    reader_.request_stop();
    reader_.join();
    ::close(ours_);
    ::close(theirs_);
  }
  Typist(const Typist&) = delete;
  Typist& operator=(const Typist&) = delete;

  void type(const std::string& keys) const {
    REQUIRE(::write(ours_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
  }
  // Reads one input typed with these keys.
  std::string enter(const std::string& keys) {
    type(keys);
    end = editor_->read("> ", [] {});
    return editor_->text();
  }
  // The same, key by key: each is drawn.
  std::string enter_slowly(const std::vector<std::string>& keys) {
    std::size_t next = 0;
    end = editor_->read("> ", [&] { type(keys.at(next++)); });
    return editor_->text();
  }
  LineEditor& editor() { return *editor_; }
  // The screen once no more output arrives.
  std::string screen() {
    while (poll_ours(100)) ::usleep(1000);
    const std::lock_guard lock(mutex_);
    return screen_.text();
  }

  End end = End::entered;

 private:
  bool poll_ours(int limit_ms) const {
    pollfd polled = {ours_, POLLIN, 0};
    return ::poll(&polled, 1, limit_ms) > 0;
  }
  void take(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!poll_ours(20)) continue;
      const std::lock_guard lock(mutex_);
      std::array<char, 4096> bytes;
      const ssize_t got = ::read(ours_, bytes.data(), bytes.size());
      if (got > 0) screen_.write({bytes.data(), static_cast<std::size_t>(got)});
    }
  }

  int ours_ = -1, theirs_ = -1;
  std::unique_ptr<LineEditor> editor_;
  std::mutex mutex_;
  Screen screen_;
  std::jthread reader_;
};

std::string pasted(const std::string& text) {
  return "\033[200~" + text + "\033[201~";
}

TEST_CASE("keys move, erase and insert") {
  Typist typist(24, 80);
  CHECK(typist.enter("hello wrld\033[D\033[D\033[Do\r") == "hello world");
  CHECK(typist.enter("two words\033bbig \r") == "two big words");
  CHECK(typist.enter("two words\001\033f,\r") == "two, words");
  CHECK(typist.enter("one two\033\177ONE\r") == "one ONE");
  CHECK(typist.enter("one two\001\033d\r") == " two");
  CHECK(typist.enter("e\u0301\U0001F468\u200D\U0001F467\177x\r") == "e\u0301x");
  CHECK(typist.enter("abc\033[H\033[3~\033[F!\r") == "bc!");
  CHECK(typist.enter("gone\025kept \027there\r") == "there");
  CHECK(typist.enter("\r") == "");
}

TEST_CASE("Ctrl-C gives the input up, Ctrl-D leaves where there is none") {
  Typist typist(24, 80);
  typist.enter("given up\003");
  CHECK(typist.end == End::cancelled);
  CHECK(typist.enter("ab\001\004\r") == "b");
  typist.enter("\004");
  CHECK(typist.end == End::left);
}

TEST_CASE("up and down move between lines, and then through the history") {
  Typist typist(24, 80, {"older", "two\nlines"});
  CHECK(typist.enter("a\nb\033[Ax\r") == "ax\nb");
  CHECK(typist.enter("\033[A\033[A\033[A!\r") == "two\nlines!");
  CHECK(typist.enter("\033[A\033[A\033[A\033[A\033[A\033[A\033[A!\r") == "older!");
  CHECK(typist.enter("new\033[A\033[B!\r") == "new!");
  // Ctrl-P and Ctrl-N move through the history from any line.
  CHECK(typist.enter("\020\020\020\016!\r") == "older!!");
}

TEST_CASE("Ctrl-R finds old inputs, the newest first, and Esc brings the own one back") {
  Typist typist(24, 80, {"load the first", "ask", "load the second"});
  CHECK(typist.enter("\022load\r") == "load the second");
  CHECK(typist.enter("\022the\022\022\r") == "load the first");
  CHECK(typist.enter("\022first\001x\r") == "xload the first");
  CHECK(typist.enter("mine\022load\007!\r") == "mine!");
  CHECK(typist.enter("mine\022ask\003!\r") == "mine!");
  CHECK(typist.enter("\022asx\177k\r") == "ask");
  CHECK(typist.enter_slowly({"\022sec", "\r"}) == "load the second");
  CHECK(typist.screen().ends_with("\n> load the second"));
}

TEST_CASE("answers to questions are not kept, and what comes behind them is") {
  Typist typist(24, 80, {"older"});
  typist.type("yes\r");
  CHECK(typist.editor().read_answer("Sure? ", [] {}) == End::entered);
  CHECK(typist.editor().text() == "yes");
  CHECK(typist.enter("newer\r") == "newer");
  CHECK(typist.enter("\033[A!\r") == "newer!");
  CHECK(typist.enter("\033[A\033[A\033[A!\r") == "older!");
}

TEST_CASE("a search that is given up leaves the place in the history where it was") {
  Typist typist(24, 80, {"load the first", "ask", "load the second"});
  CHECK(typist.enter("mine\022first\007\033[A\r") == "load the second");
  CHECK(typist.enter("\033[A\022first\003\033[A\r") == "ask");
}

TEST_CASE("a sequence that is broken off does not take the key behind it") {
  Typist typist(24, 80);
  CHECK(typist.enter("ab\033[\001x\r") == "xab");
  CHECK(typist.enter("ab\033[1;\033[Dx\r") == "axb");
  CHECK(typist.enter("ab\033[\u00e4\r") == "ab\u00e4");
  typist.enter("given up\033[\003");
  CHECK(typist.end == End::cancelled);
}

TEST_CASE("control characters in an old input are shown, not sent") {
  Typist typist(24, 80, {"a\033]0;title\007b\u202e"});
  CHECK(typist.enter_slowly({"\033[A", "\r"}) == "a\\x1b]0;title\\x07b\\u202e");
  CHECK(typist.screen() == "> a\\x1b]0;title\\x07b\\u202e");
}

TEST_CASE("Tab completes as far as there is one way, and shows the ways then") {
  const auto complete = [](const std::string& text) {
    std::vector<std::string> all;
    for (const std::string word : {"/save ", "/set ", "/show "}) {
      if (word.starts_with(text)) all.push_back(word);
    }
    return all;
  };
  Typist typist(24, 80, {}, complete);
  CHECK(typist.enter("/sa\tfile\r") == "/save file");
  CHECK(typist.enter_slowly({"/", "\t", "\t", "\r"}) == "/s");
  CHECK(typist.screen().find("\n/save   /set   /show\n> /s") != std::string::npos);
  CHECK(typist.enter("x\t\r") == "x");
}

TEST_CASE("a paste is one input with its lines; control characters in it do nothing") {
  Typist typist(24, 80);
  CHECK(typist.enter(pasted("one\r\ntwo\r\tthree\n\003\004\033x") + "\r") ==
        "one\ntwo\n    three\nx");
  CHECK(typist.enter("a\\\rb\033\rc\r") == "a\nb\nc");
}

TEST_CASE("a long line is broken between words, and edited where it stands") {
  Typist typist(24, 20);
  CHECK(typist.enter_slowly({"one two three four five", "\033[D", "\033[D", "\177\177", "\r"}) ==
        "one two three four ve");
  CHECK(typist.screen() == "> one two three\n  four ve");
}

TEST_CASE("a paste taller than the window leaves one copy on the screen, however it is edited") {
  Typist typist(6, 30);
  std::string text, shown;
  for (int i = 0; i < 40; ++i) {
    const std::string line = "line " + std::to_string(i);
    text += (i > 0 ? "\n" : "") + line;
    shown += (i > 0 ? "\n  " : "> ") + line;
  }
  const std::string got = typist.enter_slowly({pasted(text), "\033[A", "\033[A", "\033[A", "\033[A",
                                               "\033[A", "\033[A", "\033[A", "x", "\177", "\r"});
  CHECK(got == text);
  CHECK(typist.screen() == shown);
}

TEST_CASE("emoji and wide characters do not disturb what stands around them") {
  Typist typist(24, 20);
  const std::string family = "\U0001F468\u200D\U0001F469\u200D\U0001F467";
  CHECK(typist.enter_slowly({family + "\u4F60\u597D", "\033[D", "\033[D", "x", "\r"}) ==
        family + "x\u4F60\u597D");
  CHECK(typist.screen() == "> " + family + "x\u4F60\u597D");
}

TEST_CASE("Ctrl-C is noticed while nothing is read, and keys behind it are kept") {
  Typist typist(24, 80);
  CHECK_FALSE(typist.editor().interrupted());
  typist.type("lost\003kept");
  ::usleep(50'000);
  CHECK(typist.editor().interrupted());
  CHECK_FALSE(typist.editor().interrupted());
  CHECK(typist.enter("!\r") == "kept!");
}

TEST_CASE("the terminal is as it was when the editor is gone") {
  int ours = -1, theirs = -1;
  REQUIRE(::openpty(&ours, &theirs, nullptr, nullptr, nullptr) == 0);
  termios before{}, during{}, after{};
  ::tcgetattr(theirs, &before);
  {
    const LineEditor editor(theirs, theirs);
    ::tcgetattr(theirs, &during);
  }
  ::tcgetattr(theirs, &after);
  CHECK((during.c_lflag & (ECHO | ICANON | ISIG)) == 0);
  CHECK(after.c_lflag == before.c_lflag);
  ::close(ours);
  ::close(theirs);
}

// The terminal's state after a process that edits in it was killed; `prepare` runs in that process.
termios after_kill(const std::function<void(int terminal)>& prepare, int limit_ms,
                   termios& before) {
  int ours = -1, theirs = -1;
  REQUIRE(::openpty(&ours, &theirs, nullptr, nullptr, nullptr) == 0);
  ::tcgetattr(theirs, &before);
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t process = ::fork();
  if (process == 0) {
    const LineEditor editor(theirs, theirs);
    prepare(theirs);
    [[maybe_unused]] const ssize_t n = ::write(ends[1], "", 1);
    while (true) ::pause();
  }
  char byte = 0;
  REQUIRE(::read(ends[0], &byte, 1) == 1);
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
  termios now{};
  for (int look = 0; look < limit_ms; ++look) {
    ::tcgetattr(theirs, &now);
    if (now.c_lflag == before.c_lflag) break;
    ::usleep(1000);
  }
  for (const int fd : {ours, theirs, ends[0], ends[1]}) ::close(fd);
  return now;
}

TEST_CASE("the terminal is as it was when the editor's process was killed") {
  termios before{};
  const termios after = after_kill([](int) {}, 10'000, before);
  CHECK(after.c_lflag == before.c_lflag);
  CHECK(after.c_iflag == before.c_iflag);
}

TEST_CASE("settings that somebody else has given the terminal meanwhile stay when it was killed") {
  termios before{};
  const termios after = after_kill(
      [](int terminal) {
        termios other{};
        ::tcgetattr(terminal, &other);
        other.c_lflag |= ICANON;
        ::tcsetattr(terminal, TCSANOW, &other);
      },
      200, before);
  CHECK(after.c_lflag != before.c_lflag);
  CHECK((after.c_lflag & ICANON) != 0);
}

}  // namespace
}  // namespace nvllm::launcher
