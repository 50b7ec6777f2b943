// Text input and output: results on standard output, input lines, output lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"
#include "base/unique_fd.h"

namespace nvllm::launcher {

// The output's reader has closed it (EPIPE). That is not reported as a failure, but nothing is left
// to do.
class OutputClosed : public Error {
 public:
  using Error::Error;
};

// Throws an Error if standard output was closed when the program started (or opened read-only):
// main() replaces it by a file that cannot be written.
void check_standard_output();

// Writes the whole text to standard output, which carries only results. On a terminal, control
// characters are made visible (base/visible_text.h), so a call must not end within a character;
// files and pipes get the text unchanged. Throws OutputClosed, or an Error.
void write_results(std::string_view text);
// The same for a text with escape sequences of ours, in which foreign text is already made visible.
void write_as_is(std::string_view text);

// Buffers small results before writing them to standard output.
class ResultWriter {
 public:
  void write(std::string_view text) {
    pending_ += text;
    if (pending_.size() >= kMaxPending) flush();
  }
  void flush() {
    write_results(pending_);
    pending_.clear();
  }

 private:
  static constexpr std::size_t kMaxPending = 1 << 16;
  std::string pending_;
};

// LineReader: reads lines of a file, a pipe or a terminal as they arrive. It keeps only the current
// line and one more chunk in memory.
class LineReader {
 public:
  static constexpr std::size_t kMaxLine = std::size_t{64} << 20;

  // "-": standard input. An Error if it cannot be opened, or is a folder.
  explicit LineReader(const std::string& path, std::size_t max_line = kMaxLine);

  enum class Found { line, nothing_yet, end };
  // Reads the next line; waits up to the limit. The last line needs no newline.
  Found next(Nanoseconds limit);

  // About the line last returned by next().
  std::string_view line() const { return line_; }   // without its newline; valid until next()
  std::uint64_t number() const { return number_; }  // from 1
  bool torn() const { return torn_; }               // the input ended without a newline after it
  bool too_long() const { return too_long_; }       // line() is empty then
  std::uint64_t read_bytes() const { return read_bytes_; }  // input position after the line

  std::uint64_t total_bytes() const { return total_bytes_; }  // 0: unknown
  int fd() const { return file_.get(); }

 private:
  bool fill(Nanoseconds limit);
  Found emit(std::size_t length, std::size_t newline);

  std::string name_;
  UniqueFd file_;
  std::size_t max_line_;
  std::uint64_t total_bytes_ = 0;

  std::string buffer_;
  std::size_t begin_ = 0;     // of the next line
  std::size_t searched_ = 0;  // no newline from begin_ to here
  bool at_end_ = false;
  std::uint64_t dropped_ = 0;  // bytes of an overlong line that has not ended yet

  std::string_view line_;
  std::uint64_t number_ = 0, read_bytes_ = 0;
  bool torn_ = false, too_long_ = false;
};

// The output blocks, and the run is over.
class OutputStuck : public Error {
 public:
  using Error::Error;
};

// LineWriter: writes complete lines to a file, a pipe or a terminal, without buffering.
class LineWriter {
 public:
  // path: empty, or /dev/stdout, is standard output. A file is created if it does not exist; its
  // content stays until truncate_at(). Throws an Error if it is not writable, or another run is
  // writing it.
  explicit LineWriter(const std::string& path);

  // Truncates a file at this offset and continues there; other outputs have no content.
  void truncate_at(std::uint64_t offset);
  // Writes lines with their newlines. A full disk is an Error, and the file then ends with a
  // complete line. Waits for a slow reader until give_up() is true.
  void write(std::string_view lines);
  // give_up is called regularly while the output blocks.
  void set_give_up(std::function<bool()> give_up) { give_up_ = std::move(give_up); }

  int fd() const { return fd_; }
  bool is_file() const { return is_file_; }  // a regular one
  // Whether it is a file with content.
  bool has_content() const;
  bool same_file_as(int fd) const;
  bool same_file_as(const std::string& path) const;  // false, too, if there is none

 private:
  void lock() const;
  std::size_t write_some(std::string_view text);
  void wait_until_writable();

  std::string name_;
  UniqueFd file_;
  int fd_;
  bool is_file_ = false;
  std::uint64_t written_ = 0;  // where the next byte goes
  std::uint64_t end_ = 0;      // after the last whole line
  std::function<bool()> give_up_;
};

}  // namespace nvllm::launcher
