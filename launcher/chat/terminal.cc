#include "launcher/chat/terminal.h"

#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/error.h"

namespace nvllm::launcher {

namespace {

constexpr int kIdleMs = 200;
constexpr int kEscapeMs = 50;  // the rest of a key's sequence comes at once
constexpr std::string_view kPasteBegin = "\033[200~", kPasteEnd = "\033[201~";

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

std::size_t size_of_char(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The columns that a character takes, as the C library knows them.
std::size_t width_of(std::string_view c) {
  static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (c.size() == 1 || utf8 == nullptr) return 1;
  const auto bits = [&](std::size_t i) { return static_cast<unsigned char>(c[i]) & 0x3F; };
  wchar_t code = static_cast<unsigned char>(c[0]) & (0x7F >> c.size());
  for (std::size_t i = 1; i < c.size(); ++i) code = code << 6 | bits(i);
  const locale_t own = ::uselocale(utf8);
  const int width = ::wcwidth(code);
  ::uselocale(own);
  return width < 0 ? 1 : static_cast<std::size_t>(width);
}

struct Place {
  std::size_t row = 0, column = 0;
};

// Where the cursor is after the text was written from `place` on, in a window of so many columns.
Place advance(Place place, std::string_view text, std::size_t columns) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = std::min(size_of_char(text[i]), text.size() - i);
    if (text[i] == '\n') {
      place = {place.row + 1, 0};
    } else {
      const std::size_t width = width_of(text.substr(i, size));
      if (place.column + width > columns) place = {place.row + 1, 0};
      place.column += width;
    }
    i += size;
  }
  if (place.column >= columns) place = {place.row + 1, 0};
  return place;
}

}  // namespace

LineEditor::LineEditor(int in, int out) : in_(in), out_(out) {
  if (::tcgetattr(in_, &before_) != 0) fail_errno("the terminal");
  set_raw();
}

LineEditor::~LineEditor() {
  restore();
}

void LineEditor::set_raw() {
  termios raw = before_;
  raw.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR | IXON | ISTRIP);
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  ::tcsetattr(in_, TCSADRAIN, &raw);
  write("\033[?2004h");  // pasted text comes with marks around it
}

void LineEditor::restore() {
  write("\033[?2004l");
  ::tcsetattr(in_, TCSADRAIN, &before_);
}

void LineEditor::write(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = ::write(out_, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;  // the next read() will say it
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
}

bool LineEditor::fill(int limit_ms) {
  pollfd polled = {in_, POLLIN, 0};
  if (::poll(&polled, 1, limit_ms) <= 0) return false;
  std::array<char, 4096> bytes;
  const ssize_t got = ::read(in_, bytes.data(), bytes.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return false;
  if (got <= 0) fail("the terminal has gone");
  keys_.append(bytes.data(), static_cast<std::size_t>(got));
  return true;
}

bool LineEditor::interrupted() {
  while (fill(0)) {
  }
  const std::size_t at = keys_.find('\003');
  if (at == std::string::npos) return false;
  keys_.erase(0, at + 1);
  return true;
}

LineEditor::End LineEditor::read(std::string_view prompt, const std::function<void()>& idle) {
  prompt_ = prompt;
  text_.clear();
  at_ = row_ = 0;
  recalled_ = history_.size();
  draw();
  while (true) {
    while (keys_.empty()) {
      if (!fill(kIdleMs)) idle();
    }
    bool changed = false;
    Key key = Key::edited;
    while (!keys_.empty() && (key == Key::edited || key == Key::none)) {
      key = next_key();
      changed = true;
    }
    if (key == Key::enter && at_ == text_.size() && text_.ends_with('\\')) {
      text_.back() = '\n';
      key = Key::edited;
    }
    if (key == Key::newline) insert("\n");
    if (key == Key::enter || key == Key::cancel || key == Key::leave) at_ = text_.size();
    if (changed) draw();
    if (key == Key::suspend) {
      restore();
      ::raise(SIGTSTP);
      set_raw();
      row_ = 0;
      draw();
    }
    if (key == Key::leave || key == Key::cancel) {
      write("\n");
      return key == Key::leave ? End::left : End::cancelled;
    }
    if (key == Key::enter) {
      write("\n");
      if (!text_.empty() && (history_.empty() || history_.back() != text_)) {
        history_.push_back(text_);
      }
      return End::entered;
    }
  }
}

LineEditor::Key LineEditor::next_key() {
  const char key = keys_.front();
  if (key == '\033') return handle_escape();
  const auto byte = static_cast<unsigned char>(key);
  if (byte < 0x20 || byte == 0x7F) {
    keys_.erase(0, 1);
    return handle_control(key);
  }
  const std::size_t size = size_of_char(key);
  while (keys_.size() < size && fill(kEscapeMs)) {
  }
  const std::size_t taken = std::min(size, keys_.size());
  // A byte that begins no character, or one whose rest did not come, is no text.
  const bool whole =
      taken == size && !continues(key) &&
      std::all_of(keys_.begin() + 1, keys_.begin() + static_cast<long>(taken), continues);
  if (whole) insert(std::string(keys_, 0, taken));
  keys_.erase(0, whole ? taken : 1);
  return Key::edited;
}

LineEditor::Key LineEditor::handle_control(char key) {
  switch (key) {
    case '\r': return Key::enter;
    case '\n': return Key::newline;
    case '\003': return Key::cancel;
    case '\032': return Key::suspend;
    case '\004':
      if (text_.empty()) return Key::leave;
      erase(at_, after(at_));
      break;
    case '\001': at_ = line_begin(); break;
    case '\005': at_ = line_end(); break;
    case '\002': at_ = before(at_); break;
    case '\006': at_ = after(at_); break;
    case '\010':
    case '\177': erase(before(at_), at_); break;
    case '\013': erase(at_, line_end()); break;
    case '\025': erase(line_begin(), at_); break;
    case '\027': erase(word_before(at_), at_); break;
    case '\020': recall(-1); break;
    case '\016': recall(1); break;
    case '\014':
      write("\033[H\033[2J");
      row_ = 0;
      break;
    default: break;
  }
  return Key::edited;
}

// Sequences of cursor keys and the like; unknown ones are passed over.
LineEditor::Key LineEditor::handle_escape() {
  if (keys_.size() == 1) fill(kEscapeMs);
  if (keys_.size() > 1 && (keys_[1] == '\r' || keys_[1] == '\n')) {
    keys_.erase(0, 2);
    return Key::newline;
  }
  if (keys_.size() < 2 || (keys_[1] != '[' && keys_[1] != 'O')) {
    keys_.erase(0, 1);
    return Key::edited;
  }
  if (handle_paste()) return Key::edited;
  std::size_t end = 2;
  while (true) {
    if (end == keys_.size() && !fill(kEscapeMs)) break;
    if (keys_[end] >= 0x40 && keys_[end] <= 0x7E) break;
    ++end;
  }
  const std::string sequence = keys_.substr(2, end - 1);
  keys_.erase(0, std::min(end + 1, keys_.size()));
  if (sequence == "A") recall(-1);
  if (sequence == "B") recall(1);
  if (sequence == "C") at_ = after(at_);
  if (sequence == "D") at_ = before(at_);
  if (sequence == "H" || sequence == "1~" || sequence == "7~") at_ = line_begin();
  if (sequence == "F" || sequence == "4~" || sequence == "8~") at_ = line_end();
  if (sequence == "3~") erase(at_, after(at_));
  if (sequence == "1;5C") at_ = word_after(at_);
  if (sequence == "1;5D") at_ = word_before(at_);
  return Key::edited;
}

// Whether a pasted text begins here; all of it is taken, whatever is in it.
bool LineEditor::handle_paste() {
  while (kPasteBegin.starts_with(keys_) && keys_.size() < kPasteBegin.size() && fill(kEscapeMs)) {
  }
  if (!keys_.starts_with(kPasteBegin)) return false;
  constexpr int kPasteMs = 1000;  // between two parts of it
  std::size_t end = std::string::npos;
  while ((end = keys_.find(kPasteEnd)) == std::string::npos && fill(kPasteMs)) {
  }
  std::string pasted = keys_.substr(
      kPasteBegin.size(), end == std::string::npos ? std::string::npos : end - kPasteBegin.size());
  keys_.erase(0, end == std::string::npos ? end : end + kPasteEnd.size());
  std::string clean;
  for (std::size_t i = 0; i < pasted.size(); ++i) {
    const char c = pasted[i];
    if (c == '\r') {
      if (i + 1 == pasted.size() || pasted[i + 1] != '\n') clean += '\n';
    } else if (c == '\t') {
      clean += "    ";
    } else if (c == '\n' || static_cast<unsigned char>(c) >= 0x20) {
      clean += c;
    }
  }
  insert(clean);
  return true;
}

void LineEditor::insert(std::string_view text) {
  text_ = str(std::string_view(text_).substr(0, at_), text, std::string_view(text_).substr(at_));
  at_ += text.size();
}

void LineEditor::erase(std::size_t begin, std::size_t end) {
  text_.erase(begin, end - begin);
  at_ = begin;
}

void LineEditor::recall(int step) {
  const std::size_t wanted = recalled_ + static_cast<std::size_t>(step);  // wraps below 0
  if (wanted > history_.size()) return;
  if (recalled_ == history_.size()) typed_ = text_;
  recalled_ = wanted;
  text_ = wanted == history_.size() ? typed_ : history_[wanted];
  at_ = text_.size();
}

std::size_t LineEditor::before(std::size_t at) const {
  if (at == 0) return 0;
  --at;
  while (at > 0 && continues(text_[at])) --at;
  return at;
}

std::size_t LineEditor::after(std::size_t at) const {
  if (at == text_.size()) return at;
  ++at;
  while (at < text_.size() && continues(text_[at])) ++at;
  return at;
}

std::size_t LineEditor::word_before(std::size_t at) const {
  while (at > 0 && text_[at - 1] == ' ') --at;
  while (at > 0 && text_[at - 1] != ' ' && text_[at - 1] != '\n') --at;
  return at;
}

std::size_t LineEditor::word_after(std::size_t at) const {
  while (at < text_.size() && text_[at] == ' ') ++at;
  while (at < text_.size() && text_[at] != ' ' && text_[at] != '\n') ++at;
  return at;
}

std::size_t LineEditor::line_begin() const {
  const std::size_t newline = at_ == 0 ? std::string::npos : text_.rfind('\n', at_ - 1);
  return newline == std::string::npos ? 0 : newline + 1;
}

std::size_t LineEditor::line_end() const {
  return std::min(text_.find('\n', at_), text_.size());
}

// Writes prompt and text again, where they were, and puts the cursor in its place.
void LineEditor::draw() {
  winsize window{};
  const bool known = ::ioctl(out_, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  const std::size_t columns = known ? window.ws_col : 80;
  const Place begin = advance({}, prompt_, columns);
  const Place end = advance(begin, text_, columns);
  const Place cursor = advance(begin, std::string_view(text_).substr(0, at_), columns);
  std::string out = "\r";
  if (row_ > 0) out += str("\033[", row_, "A");
  out += "\033[J" + prompt_ + text_;
  // A full last line leaves the cursor behind its end, until something comes.
  if (end.column == 0 && end.row > 0 && !text_.ends_with('\n')) out += "\n";
  if (end.row > cursor.row) out += str("\033[", end.row - cursor.row, "A");
  out += "\r";
  if (cursor.column > 0) out += str("\033[", cursor.column, "C");
  row_ = cursor.row;
  write(out);
}

namespace {

constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
constexpr const char *kDim = "\033[2m", *kPlain = "\033[0m";

// How many of the text's last bytes may be the beginning of the tag.
std::size_t started(std::string_view text, std::string_view tag) {
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

ThinkingText::ThinkingText(bool dimmed, bool thinking) : dimmed_(dimmed), thinking_(thinking) {}

std::string ThinkingText::push(std::string_view piece) {
  if (!dimmed_) return std::string(piece);
  std::string all = std::exchange(held_, {}).append(piece);
  std::string out;
  while (true) {
    const std::string_view tag = thinking_ ? kEnd : kBegin;
    const std::size_t at = all.find(tag);
    const bool found = at != std::string::npos;
    const std::size_t size =
        found ? at + (thinking_ ? tag.size() : 0) : all.size() - started(all, tag);
    if (size > 0) out += thinking_ ? kDim + all.substr(0, size) + kPlain : all.substr(0, size);
    all.erase(0, size);
    if (!found) break;
    thinking_ = !thinking_;
  }
  held_ = std::move(all);
  return out;
}

std::string ThinkingText::finish() {
  if (held_.empty()) return "";
  return thinking_ ? kDim + std::exchange(held_, {}) + kPlain : std::exchange(held_, {});
}

}  // namespace nvllm::launcher
