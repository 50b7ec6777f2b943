// Console: writes to standard error while workers run. A thread reads what the workers write to
// standard output and error, and writes it as complete lines, each tagged with its rank.
//
// Nothing blocks on standard error: if it accepts no data (a stopped pager, a full pipe), lines are
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
// unchanged; other lines (from libraries, from a crash) are prefixed with "rank 1: ". Lines longer
// than kMaxLine are split.
class LineTagger {
 public:
  static constexpr std::size_t kMaxLine = 2048;

  explicit LineTagger(std::string who) : who_(std::move(who)) {}

  // Appends completed lines to `out`.
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
  // Maximum total time that the shutdown waits for pending output.
  static constexpr Nanoseconds kLastWrites = std::chrono::milliseconds(500);

  // Writes to out_fd, which stays the caller's.
  explicit Console(int out_fd);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  // Reads the rest of the pipes and waits until it is written, at most kLastWrites, or hardly at
  // all if a flush() has timed out.
  ~Console();

  // The reading end of a worker's output. Call it before start().
  void add_worker(int rank, UniqueFd pipe);
  // The same for another process: "link".
  void add_source(const std::string& who, UniqueFd pipe);
  // Starts the thread that reads and writes; call it after all forks.
  void start();

  // Queues complete lines of the launcher itself, which are never dropped. On a terminal, control
  // characters in them, as in the workers' lines, are made visible.
  void print(std::string_view lines);
  // The same for text that moves the cursor on purpose, such as a progress bar. Foreign text in it
  // must already be made visible.
  void draw(std::string_view text);
  // Reads what the workers have written so far, so that lines printed later follow it.
  void collect();
  // Waits until everything queued has been written; false if that took longer than the limit.
  bool flush(Nanoseconds limit);

 private:
  struct State;
  static void relay(State& state);

  // Shared with the thread, which may outlive a console whose output is stuck.
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace nvllm::launcher
