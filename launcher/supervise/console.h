// Console: writes to standard error while workers run. One thread reads what the workers write to
// their standard output and error, and writes it as whole lines, each with its rank.
//
// Nothing waits for standard error: if it accepts no data (a stopped pager, a full pipe), lines are
// queued up to a limit; beyond it the workers' lines are dropped and counted. Workers never block
// either, because their pipes are always read.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace nvllm::launcher {

// Splits one worker's raw output into lines and tags them: the worker's own log lines pass
// unchanged; other lines (from libraries, from a crash) get "rank 1: " in front. Lines longer than
// kMaxLine are split.
class LineTagger {
 public:
  static constexpr std::size_t kMaxLine = 2048;

  explicit LineTagger(std::string who) : who_(std::move(who)) {}

  // Appends to `out` the lines that have become whole.
  void feed(std::string_view bytes, std::string& out);
  // Appends the rest, which has no newline, as a line.
  void finish(std::string& out);

 private:
  void emit(std::string_view line, std::string& out) const;

  std::string who_;      // "rank 1"
  std::string partial_;  // shorter than kMaxLine, without a newline
};

// Thread-safe once started.
class Console {
 public:
  // How long an end waits for what is still to be written, all in all.
  static constexpr Nanoseconds kLastWrites = std::chrono::milliseconds(500);

  // Writes to out_fd, which stays the caller's.
  explicit Console(int out_fd);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  // Reads what is left in the pipes and waits for it to be written, kLastWrites at most, or hardly
  // at all if a flush() has waited in vain.
  ~Console();

  // The reading end of a worker's output. Before start().
  void add_worker(int rank, UniqueFd pipe);
  // The same of another process: "link".
  void add_source(const std::string& who, UniqueFd pipe);
  // Starts the thread that reads and writes; all forks must have been done.
  void start();

  // Queues whole lines of the launcher itself, which are never dropped. On a terminal, control
  // characters in them are made visible; so they are in the workers' lines.
  void print(std::string_view lines);
  // The same for what moves the cursor on purpose, as a progress bar does. Texts of others in it
  // must be visible already.
  void draw(std::string_view text);
  // Reads what the workers have written so far, so that lines printed from now on come after it.
  void collect();
  // Waits until everything queued has been written; false if that took longer than the limit.
  bool flush(Nanoseconds limit);

 private:
  struct State;
  static void relay(State& state);

  // Shared with the thread, which may outlive a console whose output hangs.
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace nvllm::launcher
