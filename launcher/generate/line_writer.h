// LineWriter: whole lines into a file, a pipe or a terminal; each call leaves nothing in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/unique_fd.h"
#include "launcher/standard_output.h"

namespace nvllm::launcher {

// The output takes nothing, and the run is over.
class OutputStuck : public Error {
 public:
  using Error::Error;
};

class LineWriter {
 public:
  // path: empty is standard output. A file is created if there is none; what one holds stays until
  // begin_at(). An Error if it cannot be written to, or another run does.
  explicit LineWriter(const std::string& path);

  // A file's content from there on goes away, and lines are written there; other outputs have none.
  void begin_at(std::uint64_t offset);
  // Lines with their newlines. A full disk is an Error, and the file then ends with a whole line. A reader
  // who is slow is waited for, until give_up() is true.
  void write(std::string_view lines);
  // Asked every now and then while the output takes nothing.
  void set_give_up(std::function<bool()> give_up) { give_up_ = std::move(give_up); }

  int fd() const { return fd_; }
  bool same_file_as(int fd) const;

 private:
  void lock() const;
  std::size_t write_some(std::string_view text);
  void wait_for_room();

  std::string name_;
  UniqueFd file_;
  int fd_;
  bool is_file_ = false;
  std::uint64_t written_ = 0;  // where the next byte goes
  std::uint64_t end_ = 0;      // after the last whole line
  std::function<bool()> give_up_;
};

}  // namespace nvllm::launcher
