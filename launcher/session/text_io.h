// LineReader: lines of a file, a pipe or a terminal, as they come. Never more of the input is in memory
// than the line that is read, and what the system gave beyond it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace nvllm::launcher {

class LineReader {
 public:
  static constexpr std::size_t kLongestLine = std::size_t{64} << 20;

  // "-": standard input. An Error if it cannot be opened, or is a folder.
  explicit LineReader(const std::string& path, std::size_t longest_line = kLongestLine);

  enum class Found { line, nothing_yet, end };
  // The next line, waiting for it so long at most. The last line needs no newline.
  Found next(Nanoseconds limit);

  // Of the line that next() found last.
  std::string_view line() const { return line_; }   // without its newline; valid until next()
  std::uint64_t number() const { return number_; }  // from 1
  bool torn() const { return torn_; }          // the input has ended without a newline after it
  bool too_long() const { return too_long_; }  // it was; line() is empty then
  std::uint64_t read_bytes() const { return read_bytes_; }  // of the input, up to the line's end

  std::uint64_t total_bytes() const { return total_bytes_; }  // 0: nobody knows
  int fd() const { return file_.get(); }

 private:
  bool fill(Nanoseconds limit);
  Found give(std::size_t length, std::size_t newline);

  std::string name_;
  UniqueFd file_;
  std::size_t longest_line_;
  std::uint64_t total_bytes_ = 0;

  std::string buffer_;
  std::size_t begin_ = 0;     // what is before has been given out
  std::size_t searched_ = 0;  // no newline from begin_ to here
  bool at_end_ = false;
  std::uint64_t dropped_ = 0;  // bytes of a line that is too long, and whose end has not come yet

  std::string_view line_;
  std::uint64_t number_ = 0, read_bytes_ = 0;
  bool torn_ = false, too_long_ = false;
};

}  // namespace nvllm::launcher
