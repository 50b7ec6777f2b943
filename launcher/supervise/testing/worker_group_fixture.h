// Groups of workers for tests, and their observable state.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "ipc/group.h"
#include "launcher/supervise/worker_group.h"

namespace nvllm::launcher {

// A file that receives a console's output.
class Output {
 public:
  Output() : fd_(::memfd_create("output", MFD_CLOEXEC)) {
    REQUIRE(fd_.get() >= 0);
    REQUIRE(::fcntl(fd_.get(), F_SETFL, O_APPEND) == 0);  // several threads write to it
  }
  int fd() const { return fd_.get(); }
  std::string text() const {
    std::string all;
    std::array<char, 4096> chunk;
    for (ssize_t n; (n = ::pread(fd_.get(), chunk.data(), chunk.size(),
                                 static_cast<off_t>(all.size()))) > 0;) {
      all.append(chunk.data(), static_cast<std::size_t>(n));
    }
    return all;
  }
  bool says(const std::string& part) const { return text().find(part) != std::string::npos; }

 private:
  UniqueFd fd_;
};

inline WorkerGroup::Options options_for(const Output& output, int size,
                                        Nanoseconds step_timeout = std::chrono::seconds(60)) {
  return {.group = {.size = size, .step_timeout = step_timeout}, .output = output.fd()};
}

// A worker that is ready and does nothing until the group is aborted.
inline int wait_for_abort(const ipc::Group& group, int rank) {
  ipc::Member me = group.join(rank);
  const ipc::Heartbeat heartbeat(me);
  me.set_phase(ipc::Phase::ready);
  while (!group.aborted()) ::usleep(1000);
  return 1;
}

// Workers that end normally when they are asked to.
class Obedient {
 public:
  Obedient() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    wait_.reset(ends[0]);
    hold_.reset(ends[1]);
  }
  int operator()(const ipc::Group& group, int rank) {
    hold_.reset();
    ipc::Member me = group.join(rank);
    const ipc::Heartbeat heartbeat(me);
    me.set_phase(ipc::Phase::ready);
    char nothing;
    return static_cast<int>(::read(wait_.get(), &nothing, 1));  // 0 at the end of the pipe
  }
  int stop(WorkerGroup& workers) {
    workers.expect_end();
    hold_.reset();
    return workers.finish();
  }

 private:
  UniqueFd wait_, hold_;
};

inline void await_ready(WorkerGroup& workers) {
  const std::int64_t start = now_ns();
  for (std::size_t rank = 0; rank < workers.pids().size(); ++rank) {
    while (workers.member().group().snapshot(static_cast<int>(rank)).phase != ipc::Phase::ready) {
      REQUIRE(seconds_since(start) < 60);
      ::usleep(500);
    }
  }
}

// Waits until the supervisor has ended the group because of what the test did to it.
inline double seconds_until_abort(WorkerGroup& workers) {
  const std::int64_t start = now_ns();
  while (!workers.member().group().aborted()) {
    REQUIRE(seconds_since(start) < 60);
    ::usleep(500);
  }
  return seconds_since(start);
}

inline bool gone(pid_t pid) {
  return ::kill(pid, 0) == -1 && errno == ESRCH;
}

}  // namespace nvllm::launcher
