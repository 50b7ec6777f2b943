// A group over two boxes, simulated: each "box" is a group of its own on this machine, and the test
// transports what their mirrors collect.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ipc/group.h"
#include "ipc/mirror.h"

namespace nvllm::ipc::two_boxes {

// A group over two boxes.
struct Shape {
  std::vector<int> box_ranks = {1, 2};
  int stages = 1;
  Nanoseconds step_timeout = std::chrono::seconds(20);
  double limit_s = 100;  // after which run_over_boxes() kills the ranks
};

inline Group make_box(int box, const Shape& shape) {
  return Group::create({.size = shape.box_ranks[0] + shape.box_ranks[1],
                        .step_timeout = shape.step_timeout,
                        .staging_bytes = std::size_t{64} << 10,
                        .box_ranks = shape.box_ranks,
                        .box = box});
}

struct Boxes {
  explicit Boxes(const Shape& of = {})
      : shape(of), first(make_box(0, of)), second(make_box(1, of)) {}
  Shape shape;
  Group first, second;
  Group& of(int rank) { return rank < shape.box_ranks[0] ? first : second; }
};

// Both mirrors, connected directly.
class Carrier {
 public:
  explicit Carrier(Boxes& boxes)
      : links_{boxes.first.join(kLink), boxes.second.join(kLink)},
        mirrors_{GroupMirror(links_[0], boxes.shape.stages),
                 GroupMirror(links_[1], boxes.shape.stages)} {}

  GroupMirror& mirror(std::size_t box) { return mirrors_[box]; }

  void carry() {
    for (std::size_t box : {0, 1}) {
      GroupMirror::Outboxes out(2);
      mirrors_[box].deliver();
      if (mirrors_[box].has_output()) mirrors_[box].collect(out);
      if (!out[1 - box].empty()) mirrors_[1 - box].apply(static_cast<int>(box), out[1 - box]);
    }
  }

  void carry_records() {
    for (std::size_t box : {0, 1}) {
      GroupMirror::Outboxes out(2);
      mirrors_[box].collect_records(out);
      mirrors_[1 - box].apply(static_cast<int>(box), out[1 - box]);
    }
  }

 private:
  Member links_[2];
  GroupMirror mirrors_[2];
};

// Runs the body on each rank, in a process of its own, and transports until all have ended. Returns
// the errors of the ranks that failed.
inline std::string run_over_boxes(const std::function<void(Member&)>& body,
                                  const Shape& shape = {}) {
  Boxes boxes(shape);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < boxes.first.size(); ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      Member me = boxes.of(rank).join(rank);
      try {
        body(me);
      } catch (const std::exception& error) {
        me.set_error_text(error.what());
        me.group().abort(error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    pids.push_back(pid);
  }
  Carrier carrier(boxes);
  std::string failures;
  const std::int64_t start = now_ns();
  std::int64_t carried_records = start;
  for (std::size_t ended = 0; ended < pids.size();) {
    carrier.carry();
    if (seconds_since(carried_records) > 0.1) {
      carried_records = now_ns();
      carrier.carry_records();
    }
    if (seconds_since(start) > shape.limit_s) {
      for (const pid_t pid : pids) ::kill(pid, SIGKILL);
    }
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) continue;
    ++ended;
    const int rank = static_cast<int>(std::find(pids.begin(), pids.end(), pid) - pids.begin());
    if (status == 0) continue;
    failures += str("rank ", rank, " ended with ", status, ": ",
                    boxes.of(rank).snapshot(rank).error_text, '\n');
  }
  return failures;
}

}  // namespace nvllm::ipc::two_boxes
