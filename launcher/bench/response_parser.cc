#include "launcher/bench/response_parser.h"

#include <strings.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kMaxHead = std::size_t{64} << 10;
constexpr std::size_t kMaxLine = 4096;

bool same_word(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Whether a header with a list value such as "gzip, chunked" contains the word.
bool lists(std::string_view value, std::string_view word) {
  while (!value.empty()) {
    const std::size_t comma = std::min(value.find(','), value.size());
    if (same_word(trimmed(value.substr(0, comma)), word)) return true;
    value.remove_prefix(std::min(comma + 1, value.size()));
  }
  return false;
}

std::uint64_t number_of(std::string_view text, int base, const char* what) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail("the server's response has a bad ", what, ", '", text, "'");
  }
  return number;
}

}  // namespace

std::string_view header_of(std::string_view head, std::string_view name) {
  for (std::size_t begin = head.find('\n'); begin < head.size();) {
    ++begin;
    const std::size_t end = std::min(head.find('\n', begin), head.size());
    const std::string_view line = head.substr(begin, end - begin);
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos && same_word(line.substr(0, colon), name)) {
      return trimmed(line.substr(colon + 1));
    }
    begin = end;
  }
  return {};
}

std::size_t ResponseParser::feed(std::string_view bytes, BodyReceiver& receiver) {
  const std::size_t size = bytes.size();
  started_ = started_ || size > 0;
  while (!bytes.empty() && state_ != State::done) {
    std::size_t taken = bytes.size();
    switch (state_) {
      case State::head: taken = feed_head(bytes); break;
      case State::chunk_size:
      case State::chunk_end:
      case State::trailer: taken = feed_line(bytes); break;
      case State::fixed:
      case State::chunk_data:
        taken = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size()));
        left_ -= taken;
        if (left_ == 0) state_ = state_ == State::fixed ? State::done : State::chunk_end;
        receiver.on_body(bytes.substr(0, taken));
        break;
      case State::rest: receiver.on_body(bytes); break;
      case State::done: break;
    }
    bytes.remove_prefix(taken);
  }
  return size - bytes.size();
}

bool ResponseParser::end_of_stream() {
  keep_alive_ = false;
  if (state_ == State::rest) state_ = State::done;
  return state_ == State::done;
}

std::size_t ResponseParser::feed_head(std::string_view bytes) {
  // The terminator, "\n\r\n" or "\n\n", may start in earlier bytes.
  const std::size_t before = head_.size();
  const std::size_t wanted = std::min(bytes.size(), kMaxHead - before);
  head_.append(bytes.substr(0, wanted));
  std::size_t at = before < 2 ? 0 : before - 2;
  while ((at = head_.find('\n', at)) != std::string::npos) {
    const bool long_end = head_.compare(at, 3, "\n\r\n") == 0;
    if (long_end || head_.compare(at, 2, "\n\n") == 0) {
      head_.resize(at + (long_end ? 3 : 2));
      const std::size_t taken = head_.size() - before;
      end_of_head();
      return taken;
    }
    ++at;
  }
  if (head_.size() >= kMaxHead) fail("the server's response has more than 64 KiB of headers");
  return wanted;
}

void ResponseParser::end_of_head() {
  const std::string_view line = std::string_view(head_).substr(0, head_.find('\n'));
  const bool http = line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.0 ");
  if (!http || line.size() < 12) {
    fail("the server does not speak HTTP/1.1: it answers '", trimmed(line.substr(0, 80)), "'");
  }
  status_ = static_cast<int>(number_of(line.substr(9, 3), 10, "status"));
  if (status_ >= 100 && status_ < 200) {  // an interim response; the real one follows
    head_.clear();
    status_ = 0;
    return;
  }
  const std::string_view connection = header_of(head_, "Connection");
  keep_alive_ =
      line.starts_with("HTTP/1.1") ? !lists(connection, "close") : lists(connection, "keep-alive");
  if (status_ == 204 || status_ == 304) {
    state_ = State::done;
  } else if (lists(header_of(head_, "Transfer-Encoding"), "chunked")) {
    state_ = State::chunk_size;
  } else if (const std::string_view length = header_of(head_, "Content-Length"); !length.empty()) {
    left_ = number_of(length, 10, "Content-Length");
    state_ = left_ > 0 ? State::fixed : State::done;
  } else {
    state_ = State::rest;
    keep_alive_ = false;
  }
}

std::size_t ResponseParser::feed_line(std::string_view bytes) {
  const std::size_t newline = bytes.find('\n');
  const std::size_t taken = newline == std::string_view::npos ? bytes.size() : newline + 1;
  line_.append(bytes.substr(0, taken));
  if (line_.size() > kMaxLine) fail("the server's response has a chunk without a size");
  if (newline != std::string_view::npos) end_of_line();
  return taken;
}

void ResponseParser::end_of_line() {
  const std::string_view line = trimmed(std::string_view(line_).substr(0, line_.size() - 1));
  if (state_ == State::chunk_size) {
    left_ = number_of(trimmed(line.substr(0, line.find(';'))), 16, "chunk size");
    state_ = left_ > 0 ? State::chunk_data : State::trailer;
  } else if (state_ == State::chunk_end) {
    if (!line.empty()) fail("the server's response has a chunk that is longer than it says");
    state_ = State::chunk_size;
  } else if (line.empty()) {
    state_ = State::done;
  }
  line_.clear();
}

}  // namespace nvllm::launcher
