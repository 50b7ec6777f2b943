#include "launcher/chat/terminal/key_reader.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "tokenizer/unicode/utf8.h"

namespace nvllm::launcher {
namespace {

using Kind = Key::Kind;

constexpr int kEscapeMs = 50;   // the rest of an escape sequence arrives immediately
constexpr int kPasteMs = 1000;  // between two parts of pasted text
constexpr std::string_view kPasteBegin = "\033[200~", kPasteEnd = "\033[201~";

template <std::size_t count>
Kind kind_of(const std::pair<std::string_view, Kind> (&kinds)[count], std::string_view sequence) {
  const auto* const found =
      std::find_if(kinds, kinds + count, [&](const auto& one) { return one.first == sequence; });
  return found == kinds + count ? Kind::none : found->second;
}

// The sequences after "ESC [" and "ESC O".
constexpr std::pair<std::string_view, Kind> kSequences[] = {{"A", Kind::up},
                                                            {"B", Kind::down},
                                                            {"C", Kind::right},
                                                            {"D", Kind::left},
                                                            {"H", Kind::line_begin},
                                                            {"1~", Kind::line_begin},
                                                            {"7~", Kind::line_begin},
                                                            {"F", Kind::line_end},
                                                            {"4~", Kind::line_end},
                                                            {"8~", Kind::line_end},
                                                            {"3~", Kind::erase_right},
                                                            {"1;5C", Kind::word_right},
                                                            {"1;3C", Kind::word_right},
                                                            {"1;5D", Kind::word_left},
                                                            {"1;3D", Kind::word_left},
                                                            {"3;5~", Kind::erase_word_right}};

// Alt and a key: ESC and its byte.
constexpr std::pair<std::string_view, Kind> kAltKeys[] = {
    {"\r", Kind::newline},          {"\n", Kind::newline},         {"b", Kind::word_left},
    {"f", Kind::word_right},        {"d", Kind::erase_word_right}, {"\177", Kind::erase_word_left},
    {"\010", Kind::erase_word_left}};

// Cleans pasted text: line ends of other systems, tabs and control characters.
std::string clean(std::string_view pasted) {
  std::string text;
  for (std::size_t i = 0; i < pasted.size(); ++i) {
    const char c = pasted[i];
    if (c == '\r') {
      if (i + 1 == pasted.size() || pasted[i + 1] != '\n') text += '\n';
    } else if (c == '\t') {
      text += "    ";
    } else if (c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != '\177')) {
      text += c;
    }
  }
  return text;
}

}  // namespace

bool KeyReader::fill(int limit_ms) {
  pollfd polled = {fd_, POLLIN, 0};
  if (::poll(&polled, 1, limit_ms) <= 0) return false;
  std::array<char, 4096> bytes;
  const ssize_t got = ::read(fd_, bytes.data(), bytes.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return false;
  if (got <= 0) fail("the terminal has gone");
  bytes_.append(bytes.data(), static_cast<std::size_t>(got));
  return true;
}

bool KeyReader::interrupted() {
  while (fill(0)) {
  }
  const std::size_t at = bytes_.rfind('\003');
  if (at == std::string::npos) return false;
  bytes_.erase(0, at + 1);
  return true;
}

Key KeyReader::next() {
  const char first = bytes_.front();
  const auto byte = static_cast<unsigned char>(first);
  if (first == '\033') return next_escape();
  return byte < 0x20 || byte == 0x7F ? next_control(first) : next_text();
}

Key KeyReader::next_text() {
  const std::size_t size = tokenizer::utf8_size(bytes_.front());
  while (bytes_.size() < size && fill(kEscapeMs)) {
  }
  // Everything up to the next control character; an incomplete character at the end waits.
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\177'; };
  const auto end = std::find_if(bytes_.begin(), bytes_.end(), control);
  std::string text(bytes_.begin(), end);
  if (end == bytes_.end()) {
    const std::size_t whole = tokenizer::valid_utf8_prefix(text);
    if (whole > 0 && text.size() - whole < 4) text.resize(whole);
  }
  bytes_.erase(0, text.size());
  return {Kind::text, std::move(text)};
}

Key KeyReader::next_control(char byte) {
  bytes_.erase(0, 1);
  switch (byte) {
    case '\r': return {Kind::enter};
    case '\n': return {Kind::newline};
    case '\t': return {Kind::complete};
    case '\001': return {Kind::line_begin};
    case '\002': return {Kind::left};
    case '\003': return {Kind::cancel};
    case '\004': return {Kind::end};
    case '\005': return {Kind::line_end};
    case '\006': return {Kind::right};
    case '\007': return {Kind::escape};
    case '\010':
    case '\177': return {Kind::erase_left};
    case '\013': return {Kind::erase_to_line_end};
    case '\014': return {Kind::clear_screen};
    case '\016': return {Kind::newer};
    case '\020': return {Kind::older};
    case '\022': return {Kind::search};
    case '\025': return {Kind::erase_to_line_begin};
    case '\027': return {Kind::erase_word_left};
    case '\032': return {Kind::suspend};
    default: return {};
  }
}

Key KeyReader::next_escape() {
  if (bytes_.size() == 1) fill(kEscapeMs);
  if (bytes_.size() == 1) {
    bytes_.clear();
    return {Kind::escape};
  }
  if (bytes_[1] != '[' && bytes_[1] != 'O') {
    const Kind kind = kind_of(kAltKeys, std::string_view(bytes_).substr(1, 1));
    bytes_.erase(0, kind == Kind::none ? 1 : 2);
    return {kind};
  }
  if (begins_paste()) return next_paste();
  std::size_t end = 2;
  while (true) {
    if (end == bytes_.size() && !fill(kEscapeMs)) break;
    const auto byte = static_cast<unsigned char>(bytes_[end]);
    if (byte >= 0x40 && byte <= 0x7E) break;
    if (byte < 0x20 || byte > 0x7E) {  // not part of a sequence: a key of its own
      bytes_.erase(0, end);
      return {};
    }
    ++end;
  }
  const std::string sequence = bytes_.substr(2, end - 1);
  bytes_.erase(0, std::min(end + 1, bytes_.size()));
  return {kind_of(kSequences, sequence)};
}

bool KeyReader::begins_paste() {
  while (kPasteBegin.starts_with(bytes_) && bytes_.size() < kPasteBegin.size() && fill(kEscapeMs)) {
  }
  return bytes_.starts_with(kPasteBegin);
}

// Everything pasted is taken, whatever it contains.
Key KeyReader::next_paste() {
  std::size_t end = std::string::npos, searched = kPasteBegin.size();
  while ((end = bytes_.find(kPasteEnd, searched)) == std::string::npos) {
    searched = std::max(kPasteBegin.size(), bytes_.size() - kPasteEnd.size());
    if (!fill(kPasteMs)) break;
  }
  const bool whole = end != std::string::npos;
  const std::string pasted =
      bytes_.substr(kPasteBegin.size(), whole ? end - kPasteBegin.size() : std::string::npos);
  bytes_.erase(0, whole ? end + kPasteEnd.size() : std::string::npos);
  return {Kind::paste, clean(pasted)};
}

}  // namespace nvllm::launcher
