// Graphs of the CPU backend. A graph has one list of tasks per captured stream (a branch) and waits
// between branches. Branch 0 runs on the stream that launches the graph, each other one on a stream
// of the graph, so a launch has the concurrency, and the races, of the captured work.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "device/cpu/counter.h"
#include "device/cpu/task.h"

namespace nvllm::cpu {

class Stream;

// The content of a graph, shared by its launches, so that a graph may be destroyed while it runs.
class GraphBody {
 public:
  explicit GraphBody(Nanoseconds spin) : spin_(spin) {}
  ~GraphBody();

  // During capture: branches and their steps.
  int add_branch();
  int branches() const { return static_cast<int>(branches_.size()); }
  std::uint64_t steps(int branch) const { return branches_[branch].steps.size(); }
  template <typename Function>
  void add(int branch, Function&& step) {
    branches_[branch].steps.emplace_back(std::forward<Function>(step));
  }
  // A step of `branch`: waits until `other` has run its first `steps` steps.
  void add_wait(int branch, int other, std::uint64_t steps);
  // After capture: creates the streams of all branches except the first.
  void finish();

  // Runs everything, branch 0 on the calling thread; throws the first error. Launches wait for each
  // other: a graph never runs concurrently with itself.
  void run();

 private:
  struct Branch {
    explicit Branch(Nanoseconds spin) : done(spin) {}

    std::deque<Task> steps;
    Counter done;  // steps completed, over all launches
    std::unique_ptr<Stream> stream;
  };

  void run_branch(Branch& branch);

  const Nanoseconds spin_;
  std::deque<Branch> branches_;  // a deque, since elements cannot be moved
  std::mutex running_;
  std::uint64_t launches_ = 0;  // finished launches; guarded by running_, read by its branches
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

class Capture;

// A position in captured work, as recorded by an event.
struct CapturePoint {
  std::weak_ptr<Capture> capture;  // expired: the capture has ended
  int branch;
  // For each branch, the number of its steps that have run before this position.
  std::vector<std::uint64_t> seen;
};

// Records work from begin to end. Used by one thread.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  explicit Capture(Nanoseconds spin) : body_(std::make_shared<GraphBody>(spin)) {}

  // Records what `work` submits to the stream and to streams that wait for its events.
  static std::shared_ptr<GraphBody> run(Stream& stream, const std::function<void()>& work,
                                        Nanoseconds spin);

  template <typename Function>
  void add(int branch, Function&& step) {
    body_->add(branch, std::forward<Function>(step));
    ++seen_[branch][branch];
  }

  std::shared_ptr<const CapturePoint> point(int branch);

  // Stream::wait for an event that was recorded in a capture.
  static void wait(Stream& stream, const CapturePoint& point);

 private:
  void join(Stream& stream);
  void require_all_joined() const;
  void leave();

  std::shared_ptr<GraphBody> body_;
  std::vector<Stream*> streams_;                  // by branch
  std::vector<std::vector<std::uint64_t>> seen_;  // by branch, as in CapturePoint
};

class Graph final : public nvllm::Graph {
 public:
  explicit Graph(std::shared_ptr<GraphBody> body) : body_(std::move(body)) {}

  void launch(nvllm::Stream& stream) override;

 private:
  std::shared_ptr<GraphBody> body_;
};

}  // namespace nvllm::cpu
