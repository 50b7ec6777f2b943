#include "launcher/supervise/post_mortem.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace nvllm::launcher {
namespace {

using Kind = Culprit::Kind;

constexpr std::int64_t kNow = 100'000'000'000;

// As waitpid() encodes them.
ExitStatus killed(int signal) {
  return ExitStatus(signal);
}
ExitStatus exited(int code) {
  return ExitStatus(code << 8);
}

// Ranks that wait for their next call.
std::vector<WorkerView> idle_workers(int size) {
  std::vector<WorkerView> workers;
  for (int rank = 0; rank < size; ++rank) {
    WorkerView worker;
    worker.rank = rank;
    worker.pid = 100 + rank;
    worker.record.rank = rank;
    worker.record.pid = worker.pid;
    worker.record.phase = ipc::Phase::ready;
    worker.record.heartbeat_ns = kNow;
    workers.push_back(worker);
  }
  return workers;
}

std::string verdict(const std::vector<WorkerView>& workers, bool aborted = false) {
  const auto culprit = find_culprit(workers, aborted);
  if (!culprit) return "nobody";
  return str("rank ", culprit->rank, culprit->kind == Kind::died ? " died" : " stuck");
}

}  // namespace

TEST_CASE("nobody is blamed while all is well, also if they wait or are stopped for a moment") {
  auto workers = idle_workers(3);
  workers[0].record.waits_for = 1;
  workers[1].stopped_by = SIGSTOP;
  CHECK(verdict(workers) == "nobody");
}

TEST_CASE("who was killed is to blame, whatever the others did then") {
  auto workers = idle_workers(3);
  workers[0].status = exited(1);
  workers[2].status = killed(SIGKILL);
  CHECK(verdict(workers) == "rank 2 died");
}

TEST_CASE("who gave up waiting is not to blame: the one it waited for is") {
  auto workers = idle_workers(3);
  workers[0].status = exited(1);
  workers[0].record.waits_for = 2;
  CHECK(verdict(workers) == "rank 2 stuck");
  workers[2].status = exited(7);
  CHECK(verdict(workers) == "rank 2 died");
}

TEST_CASE("when a rank aborted the group, the others that ended because of that are not to blame") {
  auto workers = idle_workers(3);
  workers[0].status = exited(1);
  workers[2].status = exited(1);
  workers[2].record.waits_for = 1;
  CHECK(verdict(workers, true) == "rank 1 stuck");
  workers[2].record.waits_for = 0;  // rank 0 failed for a reason of its own
  CHECK(verdict(workers, true) == "rank 0 died");
}

TEST_CASE("a chain of waiting is followed to its end, a circle does not hang") {
  auto workers = idle_workers(4);
  for (auto& worker : workers) worker.overdue = true;
  workers[0].record.waits_for = 1;
  workers[1].record.waits_for = 3;
  workers[2].record.waits_for = 3;
  CHECK(verdict(workers) == "rank 3 stuck");
  workers[3].record.waits_for = 0;
  CHECK(verdict(workers).ends_with("stuck"));
}

TEST_CASE("a stopped worker is to blame when a peer gave up") {
  auto workers = idle_workers(2);
  workers[1].stopped_by = SIGSTOP;
  CHECK(verdict(workers, true) == "rank 1 stuck");
  workers[0].status = exited(1);
  CHECK(verdict(workers) == "rank 1 stuck");
}

TEST_CASE("a silent worker is stuck") {
  auto workers = idle_workers(2);
  workers[1].silent = true;
  CHECK(verdict(workers) == "rank 1 stuck");
}

TEST_CASE("workers that ended as they were asked to are no failure") {
  auto workers = idle_workers(2);
  workers[0].status = exited(0);
  CHECK(verdict(workers) == "rank 0 died");
  workers[0].done = true;
  CHECK(verdict(workers) == "nobody");
}

TEST_CASE("the post-mortem names the culprit first and then every rank") {
  auto workers = idle_workers(3);
  workers[1].status = killed(SIGKILL);
  for (int rank : {0, 1}) {
    auto& record = workers[static_cast<std::size_t>(rank)].record;
    record.step = 12;
    record.collective = {
        .text = "all_reduce 4096 float32", .number = 40, .since_ns = kNow - 1'200'000'000};
    record.call = {.text = "run", .number = 7, .since_ns = kNow - 1'250'000'000};
  }
  workers[0].record.waits_for = 1;
  workers[0].record.error_text = "the group was aborted";
  CHECK(post_mortem(workers, {1, Kind::died}, kNow) ==
        "nvllm-launch: rank 1 (pid 101) died: killed by SIGKILL, in all_reduce 4096 float32 #40 "
        "for 1.20 s, within "
        "run #7 for 1.25 s\n"
        "  rank 0  pid 100  ended by the launcher; step 12; in all_reduce 4096 float32 #40 for "
        "1.20 s, within run #7 "
        "for 1.25 s; waiting for rank 1; last error: the group was aborted\n"
        "  rank 1  pid 101  killed by SIGKILL; step 12; in all_reduce 4096 float32 #40 for 1.20 s, "
        "within run #7 for "
        "1.25 s\n"
        "  rank 2  pid 102  ended by the launcher; step 0; idle\n");
}

TEST_CASE("the post-mortem says how a living worker is stuck") {
  auto workers = idle_workers(2);
  workers[1].stopped_by = SIGSTOP;
  workers[1].silent = true;
  CHECK(
      post_mortem(workers, {1, Kind::stuck}, kNow)
          .starts_with("nvllm-launch: rank 1 (pid 101) is alive but stuck (stopped by SIGSTOP)\n"));
  workers[1].stopped_by.reset();
  workers[1].record.heartbeat_ns = kNow - 2'000'000'000;
  CHECK(
      post_mortem(workers, {1, Kind::stuck}, kNow)
          .starts_with(
              "nvllm-launch: rank 1 (pid 101) is alive but stuck (no sign of life for 2.00 s)\n"));
}

TEST_CASE("a worker that says why it ends is quoted") {
  auto workers = idle_workers(1);
  workers[0].status = exited(1);
  workers[0].record.phase = ipc::Phase::starting;
  workers[0].record.error_text = "no such device";
  CHECK(post_mortem(workers, {0, Kind::died}, kNow) ==
        "nvllm-launch: rank 0 (pid 100) died: exit code 1: no such device\n"
        "  rank 0  pid 100  exit code 1; step 0; starting; last error: no such device\n");
}

TEST_CASE("who vanished with an unknown status is to blame, though it waited for another rank") {
  auto workers = idle_workers(3);
  workers[1].record.waits_for = 0;
  workers[1].status = ExitStatus::unknown();
  CHECK(verdict(workers) == "rank 1 died");
  const std::string text = post_mortem(workers, {1, Kind::died}, kNow);
  CHECK(text.starts_with("nvllm-launch: rank 1 (pid 101) died: ended, status unknown\n"));
  // One that gave up said why; the other did not do its part.
  workers[1].record.error_text = "waited 1 s for rank 0";
  CHECK(verdict(workers, true) == "rank 0 stuck");
  // Nor is anybody to blame who was asked to end.
  workers[1].record.error_text = "";
  workers[1].done = true;
  CHECK(verdict(workers) == "nobody");
}

TEST_CASE("a kill by the kernel is told as such") {
  auto workers = idle_workers(2);
  workers[1].status = killed(SIGKILL);
  workers[1].killed_why = "out of memory";
  CHECK(
      post_mortem(workers, {1, Kind::died}, kNow)
          .starts_with("nvllm-launch: rank 1 (pid 101) died: killed by SIGKILL (out of memory)\n"));
}

TEST_CASE("kills of the OOM killer are counted in the control group, else on the machine") {
  const char* const given = std::getenv("TEST_TMPDIR");
  std::string root = std::string(given != nullptr ? given : "/tmp") + "/machine-XXXXXX";
  REQUIRE(::mkdtemp(root.data()) != nullptr);
  const auto file = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  CHECK(oom_kills(root) == 0);
  file("/proc/vmstat", "nr_free_pages 12\noom_kill 7\n");
  CHECK(oom_kills(root) == 7);
  file("/proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n");
  CHECK(oom_kills(root) == 7);
  file("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  CHECK(oom_kills(root) == 3);
  file("/sys/fs/cgroup/memory/docker/abc/memory.oom_control", "under_oom 0\noom_kill 2\n");
  CHECK(oom_kills(root) == 2);
  file("/proc/self/cgroup", "0::/jobs/mine\n");
  file("/sys/fs/cgroup/jobs/mine/memory.events", "low 0\noom 9\noom_kill 1\n");
  CHECK(oom_kills(root) == 1);
  std::filesystem::remove_all(root);
}

TEST_CASE("ranks of other boxes are named with their box, and one that is lost with the reason") {
  auto workers = idle_workers(2);
  workers[0].box = "box 0 (left)";
  workers[1].box = "box 1 (right)";
  workers[1].here = false;
  workers[1].status = killed(SIGKILL);
  CHECK(post_mortem(workers, {1, Kind::died}, kNow) ==
        "nvllm-launch: rank 1 (pid 101 on box 1 (right)) died: killed by SIGKILL\n"
        "  rank 0  pid 100  box 0 (left)  ended by the launcher; step 0; idle\n"
        "  rank 1  pid 101  box 1 (right)  killed by SIGKILL; step 0; idle\n");

  workers[1].status.reset();
  workers[1].silent = workers[1].box_silent = true;
  workers[1].record.heartbeat_ns = kNow - 3'000'000'000;
  workers[0].record.waits_for = ipc::kLink;
  CHECK(post_mortem_line(workers, {1, Kind::stuck}, kNow) ==
        "nvllm-launch: rank 1 (pid 101 on box 1 (right)) is alive but stuck (nothing has come from "
        "its box for 3.00 s: it has failed, or the network to it)\n");
  CHECK(rank_lines(workers, kNow).find("; waiting for the link to other boxes\n") !=
        std::string::npos);
}

}  // namespace nvllm::launcher
