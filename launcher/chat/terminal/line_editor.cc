#include "launcher/chat/terminal/line_editor.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"
#include "base/visible_text.h"

namespace nvllm::launcher {
namespace {

using Kind = Key::Kind;

constexpr int kIdleMs = 200;
constexpr std::string_view kDisableBracketedPaste = "\033[?2004l";

// The longest common prefix; there must be at least one text.
std::string common_beginning(const std::vector<std::string>& texts) {
  std::string common = texts.front();
  for (const std::string& text : texts) {
    const auto [mine, other] =
        std::mismatch(common.begin(), common.end(), text.begin(), text.end());
    common.erase(mine, common.end());
  }
  return common;
}

// All other descriptors are closed, because other processes may wait for their ends (pipes of
// workers, for example).
void keep_only(int terminal, int pipe) {
  // Moved to 0 and 1, whatever their numbers are.
  const int terminal_copy = ::fcntl(terminal, F_DUPFD, 3);
  const int pipe_copy = ::fcntl(pipe, F_DUPFD, 3);
  ::dup2(terminal_copy, 0);
  ::dup2(pipe_copy, 1);
  if (::syscall(SYS_close_range, 2U, ~0U, 0U) == 0) return;
  const auto files = static_cast<int>(::sysconf(_SC_OPEN_MAX));
  for (int fd = 2; fd < files; ++fd) ::close(fd);
}

bool same(const termios& a, const termios& b) {
  return a.c_iflag == b.c_iflag && a.c_oflag == b.c_oflag && a.c_lflag == b.c_lflag &&
         std::memcmp(a.c_cc, b.c_cc, sizeof(a.c_cc)) == 0;
}

// Runs in the forked process, whose memory is a copy taken while other threads ran: system calls
// only.
[[noreturn]] void watch(int terminal, int pipe, const termios& before, const termios& changed) {
  // A process group of its own: signals to the parent's group do not reach it. A process that is
  // not in the foreground may only change the terminal if it ignores SIGTTOU.
  ::setpgid(0, 0);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
  keep_only(terminal, pipe);
  char nothing = 0;
  while (::read(1, &nothing, 1) < 0 && errno == EINTR) {
  }
  termios now{};
  if (::tcgetattr(0, &now) == 0 && same(now, changed)) {
    ::tcsetattr(0, TCSANOW, &before);
    [[maybe_unused]] const ssize_t n =
        ::write(0, kDisableBracketedPaste.data(), kDisableBracketedPaste.size());
  }
  ::_exit(0);
}

}  // namespace

// A process that restores a terminal's settings if this process is killed while it has changed
// them. It only has the terminal and a pipe, whose writing end closes with this process, however it
// ends. If the system refuses another process, everything else still works.
class LineEditor::TerminalWatcher {
 public:
  // before: the settings to restore; changed: those that this process is about to set. If the
  // terminal has any other settings by then, another program has chosen them, and they stay.
  TerminalWatcher(int terminal, const termios& before, const termios& changed);
  ~TerminalWatcher();  // ends the process, which leaves the terminal unchanged
  TerminalWatcher(const TerminalWatcher&) = delete;
  TerminalWatcher& operator=(const TerminalWatcher&) = delete;

 private:
  UniqueFd alive_;  // the pipe's writing end
  pid_t pid_ = -1;
};

LineEditor::TerminalWatcher::TerminalWatcher(int terminal, const termios& before,
                                             const termios& changed) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
  const UniqueFd pipe(ends[0]);
  alive_.reset(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) watch(terminal, pipe.get(), before, changed);
}

LineEditor::TerminalWatcher::~TerminalWatcher() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

LineEditor::LineEditor(int in, int out, History history, Complete complete)
    : in_(in), out_(out), keys_(in), history_(std::move(history)), complete_(std::move(complete)) {
  if (::tcgetattr(in_, &before_) != 0) fail_errno("the terminal");
  watcher_ = std::make_unique<TerminalWatcher>(in_, before_, raw());
  set_raw();
}

LineEditor::~LineEditor() {
  restore();
}

termios LineEditor::raw() const {
  termios raw = before_;
  raw.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR | IXON | ISTRIP);
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  return raw;
}

void LineEditor::set_raw() {
  const termios raw = this->raw();
  ::tcsetattr(in_, TCSADRAIN, &raw);
  write("\033[?2004h");  // enables bracketed paste
}

void LineEditor::restore() {
  write(kDisableBracketedPaste);
  ::tcsetattr(in_, TCSADRAIN, &before_);
}

// Must not block on a terminal that accepts no output.
void LineEditor::give_terminal_back() const {
  ::tcsetattr(in_, TCSANOW, &before_);
  pollfd polled = {out_, POLLOUT, 0};
  if (::poll(&polled, 1, 0) == 1 && (polled.revents & POLLOUT) != 0) write(kDisableBracketedPaste);
}

void LineEditor::suspend() {
  restore();
  ::raise(SIGTSTP);
  set_raw();
  view_.forget();
}

void LineEditor::write(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = ::write(out_, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;  // the next read() will report it
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
}

LineEditor::End LineEditor::read_answer(std::string_view question,
                                        const std::function<void()>& idle) {
  keeps_ = false;
  const End end = read(question, idle);
  keeps_ = true;
  return end;
}

LineEditor::End LineEditor::read(std::string_view prompt, const std::function<void()>& idle) {
  prompt_ = prompt;
  edit_.set("");
  view_.forget();
  search_.reset();
  recalled_ = history_.entries().size();
  draw();
  while (true) {
    while (keys_.empty()) {
      if (keys_.fill(kIdleMs)) continue;
      idle();
      draw_if_resized();
    }
    // Keys that arrive together are drawn once.
    while (!keys_.empty()) {
      const std::optional<End> end = handle(keys_.next());
      if (!end) continue;
      write(view_.finish(prompt_, edit_.text(), window_size(out_)));
      if (*end == End::entered && keeps_) remember();
      return *end;
    }
    draw();
  }
}

void LineEditor::remember() {
  try {
    history_.add(edit_.text());
  } catch (const Error& error) {  // reported once: it is not written any more
    write(std::string(error.what()) + "\n");
  }
}

std::optional<LineEditor::End> LineEditor::handle(const Key& key) {
  if (search_ && handle_in_search(key)) return std::nullopt;
  switch (key.kind) {
    case Kind::enter: return handle_enter();
    case Kind::cancel: return End::cancelled;
    case Kind::end:
      if (edit_.text().empty()) return End::left;
      edit_.erase_right();
      break;
    case Kind::suspend: suspend(); break;
    case Kind::complete: complete(); break;
    case Kind::search:
      search_ =
          Search{.query = "", .found = std::nullopt, .before = edit_.text(), .recalled = recalled_};
      break;
    case Kind::clear_screen:
      write("\033[H\033[2J");
      view_.forget();
      break;
    default: edit(key);
  }
  return std::nullopt;
}

std::optional<LineEditor::End> LineEditor::handle_enter() {
  const std::string& text = edit_.text();
  if (edit_.cursor() != text.size() || !text.ends_with('\\')) return End::entered;
  edit_.erase_left();
  edit_.insert("\n");
  return std::nullopt;
}

// The keys that only affect the text.
void LineEditor::edit(const Key& key) {
  switch (key.kind) {
    case Kind::text:
    case Kind::paste: edit_.insert(key.text); break;
    case Kind::newline: edit_.insert("\n"); break;
    case Kind::left: edit_.left(); break;
    case Kind::right: edit_.right(); break;
    case Kind::up: move_or_recall(true); break;
    case Kind::down: move_or_recall(false); break;
    case Kind::older: recall(true); break;
    case Kind::newer: recall(false); break;
    case Kind::word_left: edit_.word_left(); break;
    case Kind::word_right: edit_.word_right(); break;
    case Kind::line_begin: edit_.line_begin(); break;
    case Kind::line_end: edit_.line_end(); break;
    case Kind::erase_left: edit_.erase_left(); break;
    case Kind::erase_right: edit_.erase_right(); break;
    case Kind::erase_word_left: edit_.erase_word_left(); break;
    case Kind::erase_word_right: edit_.erase_word_right(); break;
    case Kind::erase_to_line_begin: edit_.erase_to_line_begin(); break;
    case Kind::erase_to_line_end: edit_.erase_to_line_end(); break;
    default: break;
  }
}

void LineEditor::move_or_recall(bool older) {
  if (older ? edit_.up() : edit_.down()) return;
  recall(older);
}

void LineEditor::recall(bool older) {
  const std::vector<std::string>& entries = history_.entries();
  if (!keeps_ || (older ? recalled_ == 0 : recalled_ == entries.size())) return;
  if (recalled_ == entries.size()) typed_ = edit_.text();
  recalled_ += older ? std::size_t(-1) : 1;
  edit_.set(recalled_ == entries.size() ? typed_ : entries[recalled_]);
}

void LineEditor::complete() {
  const std::string& text = edit_.text();
  if (!complete_ || edit_.cursor() != text.size()) return;
  const std::vector<std::string> fitting = complete_(text);
  if (fitting.empty()) return;
  const std::string common = common_beginning(fitting);
  if (common.size() > text.size()) return edit_.set(common);
  if (fitting.size() == 1) return;
  std::string line;
  for (const std::string& one : fitting) line += (line.empty() ? "" : "  ") + one;
  show_above(line);
}

// Prints a line in place of the input, which is redrawn below it.
void LineEditor::show_above(const std::string& line) {
  write(view_.draw("", "", 0, window_size(out_)));
  WrappedText wrapped([this] { return window_size(out_).columns; });
  write(wrapped.push(line + "\n"));
  view_.forget();
}

// True: the search has handled the key. Other keys end it, and then act on what was found.
bool LineEditor::handle_in_search(const Key& key) {
  const std::size_t newest = history_.entries().size();
  switch (key.kind) {
    case Kind::text:
      search_->query += visible_text(key.text, Breaks::none);
      search_older(search_->found ? *search_->found + 1 : newest);
      return true;
    case Kind::erase_left: {
      EditText query;
      query.set(search_->query);
      query.erase_left();
      search_->query = query.text();
      search_older(newest);
      return true;
    }
    case Kind::search:
    case Kind::older:
    case Kind::up: search_older(search_->found ? *search_->found : newest); return true;
    case Kind::cancel:
    case Kind::escape:
      edit_.set(search_->before);
      recalled_ = search_->recalled;
      search_.reset();
      return true;
    default: search_.reset(); return false;
  }
}

// Shows the newest entry before this index that contains the query; if there is none, the last
// match stays.
void LineEditor::search_older(std::size_t end) {
  if (search_->query.empty()) return;
  const auto found = history_.find_before(end, search_->query);
  if (!found) return;
  if (recalled_ == history_.entries().size()) typed_ = search_->before;
  search_->found = recalled_ = *found;
  edit_.set(history_.entries()[*found]);
}

void LineEditor::draw_if_resized() {
  if (window_size(out_) != window_) draw();
}

void LineEditor::draw() {
  window_ = window_size(out_);
  const std::string prompt = search_ ? "(search '" + search_->query + "') " : prompt_;
  write(view_.draw(prompt, edit_.text(), edit_.cursor(), window_));
}

}  // namespace nvllm::launcher
