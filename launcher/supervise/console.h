// Console: everything that reaches standard error while workers run. It reads what the workers
// write on their standard output and error, and writes whole lines, each with its rank, through one
// thread.
//
// Nobody waits for standard error: if it takes nothing (a stopped pager, a full pipe), lines queue
// up to a bound, then workers' lines are dropped and counted. Workers never block either, since
// their pipes are always read.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace nvllm::launcher {

// Makes tagged lines out of one worker's raw output: the worker's own log lines pass as they are,
// other lines (of libraries, of a crash) get "rank 1: " in front. Lines longer than kLongestLine
// are cut into several.
class LineTagger {
 public:
  static constexpr std::size_t kLongestLine = 2048;

  explicit LineTagger(std::string who) : who_(std::move(who)) {}

  // Appends to `out` the lines that have become whole.
  void feed(std::string_view bytes, std::string& out);
  // Appends what is left, without a newline of its own, as a line.
  void finish(std::string& out);

 private:
  void emit(std::string_view line, std::string& out) const;

  std::string who_;      // "rank 1"
  std::string partial_;  // shorter than kLongestLine, without a newline
};

// Thread-safe once started.
class Console {
 public:
  // Writes to out_fd, which stays the caller's.
  explicit Console(int out_fd);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  // Reads what is left in the pipes and waits a second at most for it to be written.
  ~Console();

  // The reading end of a worker's output. Before start().
  void add_worker(int rank, UniqueFd pipe);
  // Begins to read and write: a thread comes to be, so all forks must have been done.
  void start();

  // Queues whole lines of the launcher's own; never dropped.
  void print(std::string_view lines);
  // Reads what the workers have written so far, so that lines printed from now on come after it.
  void collect();
  // Waits until everything queued has been written; false if that took longer than the limit.
  bool flush(Nanoseconds limit);

 private:
  struct State;
  static void relay(State& state);

  std::shared_ptr<State>
      state_;  // shared with the thread, which may outlive a console whose output hangs
  std::thread thread_;
};

}  // namespace nvllm::launcher
